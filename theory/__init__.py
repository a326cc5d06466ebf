"""Exact mathematics of relaxed speculative decoding: rules, residuals, laws, bounds.

No random draw, no input or output, no torch.
"""

from theory.annealing import closed_form_bound, match, survival_price
from theory.annealing_proofs import (
    prove_annealing,
    prove_closed_form,
    prove_prop_2,
    prove_prop_2_exact,
    prove_two_token_distance,
)
from theory.arrays import probabilities
from theory.blocks import CappedBlock, LiftedBlock, block, capped_block, lifted_block, ratio_certificate
from theory.budget import Budgeted, BudgetFilter, Decision, budgeted, budgeted_log_likelihood, filter_budget
from theory.budget_laws import BudgetedAnalysis, analyse_budgeted
from theory.candidates import BestAcceptance, best_acceptance
from theory.chains import Chain, IIDChain, MarkovChain, TabularChain, conditional_at
from theory.claims import Claim, claims_ledger
from theory.comparison import block_families
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
from theory.distortion import compare_rounds, compare_rules
from theory.drafted_blocks import AcceptedDrafts, BlockTests, accepted_drafts, block_tests, is_block, last_success
from theory.every_rule import compare_every_rule
from theory.exact_frontier import BlockFrontier, ExactFrontier, block_frontier, exact_frontier
from theory.families import schedule_families
from theory.frontier import BoundFrontier, bound_frontier
from theory.frontier_distance import FrontierDistance, distance_to_frontier
from theory.numbers import Bound, Exact
from theory.optimal import OptimalVerifier, TableVerifier, optimal_verifier
from theory.programmes import ResidualProgramme, best_residual
from theory.proofs import Proof, prove_one_position_line, prove_prop_1, prove_ratio_cap, prove_residual
from theory.published import lantern_verifier, published_rules, published_verifier
from theory.recommended import recommended_verifier
from theory.renewal import round_starts, survival_along_paths
from theory.residual_choice import ResidualChoice, residual_choice
from theory.residuals import (
    CactusResidual,
    ClusterResidual,
    DraftDependentResidual,
    LanternResidual,
    SurrogateResidual,
    kl_residual,
    optimal_residual,
    target_residual,
    vanilla_residual,
)
from theory.rounds import RoundAnalysis, RoundPaths, analyse_round, round_along_paths
from theory.rule_families import rule_families
from theory.rules import (
    AcceptAll,
    AtLeastLossless,
    BoundCascadeStyle,
    Cactus,
    CascadeStyle,
    DivergenceThreshold,
    Ensemble,
    EntropyRelaxed,
    FixedAcceptance,
    Grouped,
    Lantern,
    LanternPlusPlus,
    Lossless,
    Mentored,
    NeighbourhoodPooling,
    OutrightFirst,
    PartitionGrouped,
    RankGrouped,
    Relaxed,
    Rule,
    SpeculativeCascade,
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
from theory.skipping import Skipping, SkippingAnalysis, SkippingFilter, analyse_skipping, filter_skipping
from theory.symbolic import SymbolicRound, symbolic_round
from theory.trees import TreeAnalysis, analyse_tree
from theory.tv_frontier import TVFrontier, tv_frontier
from theory.verifiers import AnyVerifier, Step, Verifier, acceptance_of, cool_sd, residual_after

__all__ = [
    "AcceptAll",
    "AcceptedDrafts",
    "AnyVerifier",
    "AtLeastLossless",
    "BestAcceptance",
    "BlockFrontier",
    "BlockTests",
    "Bound",
    "BoundCascadeStyle",
    "BoundFrontier",
    "BudgetFilter",
    "Budgeted",
    "BudgetedAnalysis",
    "Cactus",
    "CactusResidual",
    "CappedBlock",
    "CascadeStyle",
    "Chain",
    "Claim",
    "ClusterResidual",
    "Decision",
    "DivergenceThreshold",
    "DraftDependentResidual",
    "Ensemble",
    "EntropyRelaxed",
    "Exact",
    "ExactFrontier",
    "FixedAcceptance",
    "FrontierDistance",
    "Grouped",
    "IIDChain",
    "Lantern",
    "LanternPlusPlus",
    "LanternResidual",
    "LiftedBlock",
    "Lossless",
    "MarkovChain",
    "Mentored",
    "NeighbourhoodPooling",
    "OffsetFilter",
    "OptimalVerifier",
    "OutrightFirst",
    "PartitionGrouped",
    "Proof",
    "RankGrouped",
    "Relaxed",
    "ResidualChoice",
    "ResidualProgramme",
    "RoundAnalysis",
    "RoundPaths",
    "Rule",
    "SequenceAnalysis",
    "Skipping",
    "SkippingAnalysis",
    "SkippingFilter",
    "SpeculativeCascade",
    "Step",
    "SurrogateResidual",
    "SymbolicRound",
    "TVFrontier",
    "TableVerifier",
    "TabularChain",
    "TopK",
    "TreeAnalysis",
    "Typical",
    "Verifier",
    "acceptance_of",
    "accepted_drafts",
    "analyse_budgeted",
    "analyse_round",
    "analyse_sequence",
    "analyse_skipping",
    "analyse_tree",
    "bang_bang_schedule",
    "best_acceptance",
    "best_residual",
    "block",
    "block_families",
    "block_frontier",
    "block_tests",
    "bound_frontier",
    "budgeted",
    "budgeted_log_likelihood",
    "capped_block",
    "claims_ledger",
    "closed_form_bound",
    "compare_every_rule",
    "compare_rounds",
    "compare_rules",
    "conditional_at",
    "cool_sd",
    "distance_to_frontier",
    "entropy",
    "exact_frontier",
    "excess_schedule",
    "exponential_schedule",
    "filter_budget",
    "filter_offsets",
    "filter_skipping",
    "hellinger",
    "hockey_stick",
    "is_block",
    "js_divergence",
    "kl_divergence",
    "kl_residual",
    "lantern_verifier",
    "last_success",
    "lifted_block",
    "linear_schedule",
    "match",
    "max_ratio",
    "nearest_neighbours",
    "optimal_residual",
    "optimal_verifier",
    "overlap",
    "probabilities",
    "prove_annealing",
    "prove_closed_form",
    "prove_one_position_line",
    "prove_prop_1",
    "prove_prop_2",
    "prove_prop_2_exact",
    "prove_ratio_cap",
    "prove_residual",
    "prove_two_token_distance",
    "published_rules",
    "published_verifier",
    "ratio_certificate",
    "recommended_verifier",
    "residual_after",
    "residual_choice",
    "reversed_schedule",
    "round_along_paths",
    "round_starts",
    "rule_families",
    "schedule_families",
    "sequence_log_likelihood",
    "survival_along_paths",
    "survival_price",
    "symbolic_round",
    "target_residual",
    "total_variation",
    "transport_cost",
    "tv_frontier",
    "uniform_schedule",
    "vanilla_residual",
]
