"""The rule to start with: capped block verification with a mildly decaying excess schedule.

    ω_i = 1 + d e^{−.2 i},    s' = min(1, w s p/q) with the largest w ≤ ω_i that keeps Σ q s' ≤ s,    residual
    Norm[s p − q s']_+    (`theory.blocks`, `theory.schedules.excess_schedule`)

One strength d ≥ 0; d = 0 is lossless block verification. Its output/target ratio over a round never exceeds Π ω_i, and
nothing the target gives probability zero is ever emitted.

p = (½, 3/10, ⅕), q = (⅕, 3/10, ½), two drafted tokens:

>>> from theory.chains import IIDChain
>>> from theory.rounds import analyse_round
>>> target, draft = IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5])
>>> for excess in (0.0, 0.5):
...     a = analyse_round(target, draft, recommended_verifier(2, excess), 2)
...     print(f"N {a.expected_accepted:.3f}, KL(out‖target) {a.kl_output_target:.4f}")
N 1.250, KL(out‖target) 0.0000
N 1.447, KL(out‖target) 0.0399
"""

from __future__ import annotations

from theory.blocks import CappedBlock, capped_block
from theory.families import MILD_DECAY
from theory.schedules import excess_schedule


def recommended_verifier(length: int, excess: float) -> CappedBlock:
    """Capped block verification with ω_i = 1 + d e^{−.2 i}: low KL at equal tokens per call, robustly.

    Parameters
    ----------
    length : int
        L ≥ 1 drafted tokens.
    excess : float
        d ≥ 0. Zero is lossless; how bold another value is depends on the pair (`theory.match` finds the one of a given
        cost).

    Returns
    -------
    CappedBlock
        `capped_block(excess_schedule(length, excess, 0.2))`.

    Raises
    ------
    ValueError
        For length < 1, or an excess that is negative or not finite.

    Notes
    -----
    Recommended by a measurement, not by a theorem: `python -m validate compare --sweep` holds it against the published
    chain rules at equal predicted tokens per call, on the same images of the embedded pair's target, over its drafts,
    three guidance scales, L = 3, 5, 8 and three sizes. By KL(target‖output) a token no other rule is lower on average,
    and only its lifted version (`lifted_block`) stays as near to the best one everywhere. ν = .2 was chosen on these
    very settings.

    When to use another:

    * L ≤ 5 and guidance ≤ 2: ν = .7, `capped_block(excess_schedule(length, d))`, has 2 to 6 % less KL; at L = 8 it has
      about 10 % more. By the round's bound ν = .7 is better everywhere, by predictive TV by 1 % on average;
    * strong guidance (4), L ≥ 5, a good draft and small relaxations: the lifted version has 10 to 15 % less KL, lifted
      uniform relaxation up to 20 %;
    * near accepting everything (t ≥ .7) all rules come closer;
    * draft trees, Jacobi windows and budgets need a token-wise rule: take `Verifier(Relaxed(excess_schedule(…)))`;
    * it carries a weight along the block, so that prefixes cannot be merged in exact analyses;
    * one position (L = 1): block verification is token-wise then, and the schedule a constant.

    Measured on one small pair of one training seed: with another pair, compare anew.

    Source: this project.
    """
    return capped_block(excess_schedule(length, excess, MILD_DECAY))
