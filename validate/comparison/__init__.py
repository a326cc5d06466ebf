"""Every method on one pair at equal tokens per call.

A *size* t says how much faster than lossless decoding a method is brought by its one strength: its tokens per call,
predicted by renewal along the target's own images, are τ₀ + t (τ₁ − τ₀), with τ₀ of token-wise lossless decoding and τ₁
of accepting every draft. Predictions need the acceptance only, so a method is matched with the quick residual
Norm[p − q f]_+ whatever residual it runs with. All methods use the same images for matching and the same seeds.

============  ====================================================================================================
methods       the relaxed chain methods, each a family of verifiers in one strength
matching      the strength at which a method has the tokens per call of a size
schemes       everything that decodes images and has no strength to match: Jacobi windows, trees, budgets, …
measuring     one row of the table: decode with it and measure
rounds        divergences of a round, and the distance to the frontier, on fresh rounds
sweep         all matched methods on the same images of the target, over drafts, guidance scales and block lengths
table, parts  the printed table and what is told of it; finished parts on disk
============  ====================================================================================================

What is measured: decoded images and their exact likelihood ratios (KL(out‖p), predictive TV, whole-image TV, the
largest predictive ratio m_t(x)/p_t(x) seen), and the target's own images (KL(p‖out)). The latter are the same images
for every method, so ratios to uniform relaxation of KL(p‖out) are taken image by image: the sharpest comparison here.
A scheme whose law has no closed form is known by its cost and its images alone.
"""

from validate.comparison.matching import Matcher, OutOfReach
from validate.comparison.measuring import Point, measure_point, points
from validate.comparison.methods import Method, relaxed_methods
from validate.comparison.ratios import paired_ratio

__all__ = [
    "Matcher",
    "Method",
    "OutOfReach",
    "Point",
    "measure_point",
    "paired_ratio",
    "points",
    "relaxed_methods",
]
