"""Exact mathematics of relaxed speculative decoding: rules, residuals, laws, bounds.

No random draw, no input or output, no torch.
"""

from theory.annealing import closed_form_bound, match, survival_price
from theory.arrays import probabilities
from theory.chains import Chain, IIDChain, MarkovChain, TabularChain, conditional_at
from theory.distances import (
    entropy,
    hellinger,
    hockey_stick,
    js_divergence,
    kl_divergence,
    max_ratio,
    overlap,
    total_variation,
    transport_cost,
)
from theory.families import schedule_families
from theory.numbers import Bound, Exact
from theory.renewal import round_starts, survival_along_paths
from theory.residuals import optimal_residual, target_residual, vanilla_residual
from theory.rounds import RoundAnalysis, RoundPaths, analyse_round, round_along_paths
from theory.rules import (
    AcceptAll,
    DivergenceThreshold,
    Ensemble,
    EntropyRelaxed,
    Lantern,
    LanternPlusPlus,
    Lossless,
    Relaxed,
    Rule,
    TopK,
    Typical,
    nearest_neighbours,
)
from theory.schedules import (
    bang_bang_schedule,
    excess_schedule,
    exponential_schedule,
    linear_schedule,
    reversed_schedule,
    uniform_schedule,
)
from theory.sequences import (
    OffsetFilter,
    SequenceAnalysis,
    analyse_sequence,
    filter_offsets,
    sequence_log_likelihood,
)
from theory.verifiers import Step, Verifier, cool_sd

__all__ = [
    "AcceptAll",
    "Bound",
    "Chain",
    "DivergenceThreshold",
    "Ensemble",
    "EntropyRelaxed",
    "Exact",
    "IIDChain",
    "Lantern",
    "LanternPlusPlus",
    "Lossless",
    "MarkovChain",
    "OffsetFilter",
    "Relaxed",
    "RoundAnalysis",
    "RoundPaths",
    "Rule",
    "SequenceAnalysis",
    "Step",
    "TabularChain",
    "TopK",
    "Typical",
    "Verifier",
    "analyse_round",
    "analyse_sequence",
    "bang_bang_schedule",
    "closed_form_bound",
    "conditional_at",
    "cool_sd",
    "entropy",
    "excess_schedule",
    "exponential_schedule",
    "filter_offsets",
    "hellinger",
    "hockey_stick",
    "js_divergence",
    "kl_divergence",
    "linear_schedule",
    "match",
    "max_ratio",
    "nearest_neighbours",
    "optimal_residual",
    "overlap",
    "probabilities",
    "reversed_schedule",
    "round_along_paths",
    "round_starts",
    "schedule_families",
    "sequence_log_likelihood",
    "survival_along_paths",
    "survival_price",
    "target_residual",
    "total_variation",
    "transport_cost",
    "uniform_schedule",
    "vanilla_residual",
]
