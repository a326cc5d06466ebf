"""Acceptance rules: f_i(x) ∈ [0, 1], the probability of accepting the drafted token x at position i.

A rule is a small class that says what it does (`acceptance`) and what it claims:

* ``lossless``: q f ≤ p everywhere, so that with the optimal residual the output law is exactly p;
* ``at_least_lossless``: f ≥ min(1, p/q) everywhere, so that Σ (min(p, q) − min(p, q f)), the waste, is zero;
* ``support_safe``: never accepts a token of target probability zero;
* ``source`` and ``reconstructed`` (True where the published formula was not readable).

It never computes its own cost: what a rule does to the output law is `analyse_round`'s business.
Formulas: p is the target after temperature, top-k and guidance; q the draft; H(p) the entropy in nats.

>>> Relaxed(2.0).acceptance([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 0).tolist()
[1.0, 1.0, 0.8]
"""

from theory.rules.base import Position, Rule, accept_up_to
from theory.rules.cascades import SpeculativeCascade
from theory.rules.groups import Grouped, PartitionGrouped, RankGrouped
from theory.rules.mentored import Mentored
from theory.rules.neighbours import (
    POOLING_SLACK,
    Lantern,
    LanternPlusPlus,
    check_neighbours,
    greedy_acceptance,
    nearest_neighbours,
    pooled_mass,
    pooled_neighbours,
)
from theory.rules.ratio import (
    AcceptAll,
    AtLeastLossless,
    Cactus,
    Ensemble,
    EntropyRelaxed,
    FixedAcceptance,
    Lossless,
    OutrightFirst,
    Relaxed,
)
from theory.rules.threshold import DivergenceThreshold, NeighbourhoodPooling, TopK, Typical
from theory.rules.tree_states import BoundCascadeStyle, CascadeStyle

__all__ = [
    "POOLING_SLACK",
    "AcceptAll",
    "AtLeastLossless",
    "BoundCascadeStyle",
    "Cactus",
    "CascadeStyle",
    "DivergenceThreshold",
    "Ensemble",
    "EntropyRelaxed",
    "FixedAcceptance",
    "Grouped",
    "Lantern",
    "LanternPlusPlus",
    "Lossless",
    "Mentored",
    "NeighbourhoodPooling",
    "OutrightFirst",
    "PartitionGrouped",
    "Position",
    "RankGrouped",
    "Relaxed",
    "Rule",
    "SpeculativeCascade",
    "TopK",
    "Typical",
    "accept_up_to",
    "check_neighbours",
    "greedy_acceptance",
    "nearest_neighbours",
    "pooled_mass",
    "pooled_neighbours",
]
