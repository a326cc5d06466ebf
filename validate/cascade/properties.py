"""Where CASCADE's two properties hold on a target, measured on the draft trees of lossless decoding.

Definitions. h_v is the guided hidden state at node v (`validate.cascade.states`), p_v the next-token law behind v.

* breadth, *semantic interchangeability*: cos(h_u, h_v) of two children of one node, beside TV(p_u, p_v), which is what
  interchangeable tokens should have small;
* depth, *convergence*: u the eldest child of the root, v a sibling, c_1, c_2, … the eldest path below u. The target
  reads c behind v as well: cos(h_{u c_1…c_d}, h_{v c_1…c_d}) and TV of the laws there for d = 0, 1, …. The rule sees
  d = 0 only; the TV at d ≥ 1 is the bias of a subtree taken over.

States that share a large mean would all have a high cosine. Hence the controls: *unrelated* nodes (same node number
and round, another image), and cosines of *centred* states, h minus its mean over the target's images. VVS (2511.13587)
reports a candidate-path cosine above .7 in 75 % of iterations and an adjacent-token cosine of .68.

Intervals are at 95 % with images as units; correlations are rank correlations with the jackknife's.

>>> rank_correlation(np.array([.1, .2, .3, .4]), np.array([4., 3., 2., 1.]), np.array([0, 1, 2, 3])).value
-1.0
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

import theory
from simulate.intervals import Interval, mean_interval
from validate.batches import run_rounds
from validate.cascade.states import guided_states
from validate.decoding import Decoded
from validate.models import Pair
from validate.models.forest import Forest
from validate.models.interface import START
from validate.noise import image_noise
from validate.tree_decoding import TreeDecoder
from validate.tree_proposers import ProposerOf
from validate.tree_shapes import TreeShape

__all__ = ["along_images", "measure_properties", "rank_correlation"]

CONFIDENCE = 0.95
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95)
EDGES = np.linspace(-1.0, 1.0, 41)


def cosine(a: Tensor, b: Tensor) -> np.ndarray:
    """Cosine on the last axis, on the host."""
    return torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1).cpu().numpy()


def distance(a: Tensor, b: Tensor) -> np.ndarray:
    """TV on the last axis, on the host."""
    return ((a.double() - b.double()).abs().sum(dim=-1) / 2).cpu().numpy()


class Table:
    """Columns that grow round by round."""

    def __init__(self) -> None:
        self.columns: dict[str, list[np.ndarray]] = {}

    def add(self, valid: np.ndarray, **columns: Any) -> None:
        """Rows where `valid`; columns broadcast to its shape."""
        for name, value in columns.items():
            self.columns.setdefault(name, []).append(np.broadcast_to(value, valid.shape)[valid])

    def __getitem__(self, name: str) -> np.ndarray:
        return np.concatenate(self.columns[name])


class Recorder(TreeDecoder):
    """A decoder of static trees that notes the states and laws of all nodes of every round."""

    centre: Tensor

    def prepare(self, centre: Tensor) -> None:
        """What is subtracted from states, and the nodes that are compared."""
        assert isinstance(self.shape, TreeShape)
        self.centre = centre
        self.breadth, self.unrelated, self.depths = Table(), Table(), Table()
        below = self.shape.children
        self.pairs = np.array([(u, v) for kids in below for i, u in enumerate(kids) for v in kids[i + 1 :]])
        self.path = [below[0][0]]
        while below[self.path[-1]]:
            self.path.append(below[self.path[-1]][0])
        self.others, run = below[0][1:], len(self.path)
        # The root, then behind it every other sibling followed by the path below the eldest.
        starts = 1 + run * np.arange(len(self.others))
        parents = [-1, *(0 if i == 0 else first + i - 1 for first in starts.tolist() for i in range(run))]
        self.comb = Forest.of(torch.tensor(parents, device=self.placed.device))
        self.drafted = False

    def _grow(self, tokens: Tensor, u: Tensor) -> Tensor | None:
        laws = super()._grow(tokens, u)
        self.drafted = laws is not None
        return laws

    def _read(self, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        if not self.drafted:
            return super()._read(tokens, place)
        combed = torch.cat([tokens[:, :1]] + [tokens[:, [v, *self.path[1:]]] for v in self.others], dim=1)
        # First, because the nodes read last are those that the walk keeps.
        logits, states = self.target.tree_logits(
            torch.where(self.comb.depths > 0, combed.clamp(min=0), combed), place, self.comb, hidden=True
        )
        behind = torch.softmax(self.warp(logits), dim=-1), guided_states(states, self.guidance, len(place))
        p, hidden = super()._read(tokens, place)
        left = (self.total - self.placed).cpu().numpy()
        guided = guided_states(hidden, self.guidance, len(place))
        self._note_breadth(tokens, left, p, hidden[: len(place)], guided)
        self._note_depth(tokens, left, p, guided, *behind)
        return p, hidden

    def _note_breadth(self, tokens: Tensor, left: np.ndarray, p: Tensor, conditional: Tensor, guided: Tensor) -> None:
        image, place = self.rows.cpu().numpy()[:, None], self.placed.cpu().numpy()[:, None]
        depth = self.forest.depths[0].cpu().numpy()
        u, v = self.pairs.T
        # A node is read if its token is not the image's last.
        read = (tokens >= 0).cpu().numpy() & (depth < left[:, None])
        self.breadth.add(
            read[:, u] & read[:, v], image=image, depth=depth[u], position=place + depth[u],
            cosine=cosine(guided[:, u], guided[:, v]), conditional=cosine(conditional[:, u], conditional[:, v]),
            centred=cosine(guided[:, u] - self.centre, guided[:, v] - self.centre), tv=distance(p[:, u], p[:, v]),
        )  # fmt: skip
        nodes = np.arange(1, tokens.shape[1])
        other = guided.roll(1, dims=0)
        self.unrelated.add(
            (read & np.roll(read, 1, axis=0))[:, nodes] & (len(image) > 1), image=image, depth=depth[nodes],
            cosine=cosine(guided, other)[:, nodes], tv=distance(p, p.roll(1, dims=0))[:, nodes],
            centred=cosine(guided - self.centre, other - self.centre)[:, nodes],
        )  # fmt: skip

    def _note_depth(
        self, tokens: Tensor, left: np.ndarray, p: Tensor, guided: Tensor, laws: Tensor, states: Tensor
    ) -> None:
        run = len(self.path)
        image, first = self.rows.cpu().numpy(), distance
        there = (tokens[:, self.path] >= 0).all(dim=1).cpu().numpy()
        for k, v in enumerate(self.others):
            at = slice(1 + k * run, 1 + (k + 1) * run)
            exists = there & (tokens[:, v] >= 0).cpu().numpy()
            similar = cosine(guided[:, self.path], states[:, at])
            centred = cosine(guided[:, self.path] - self.centre, states[:, at] - self.centre)
            step = np.arange(run)
            self.depths.add(
                exists[:, None] & (step + 1 < left[:, None]), image=image[:, None], distance=step, cosine=similar,
                centred=centred, tv=first(p[:, self.path], laws[:, at]), seen=similar[:, :1],
                seen_centred=centred[:, :1],
            )  # fmt: skip


@torch.no_grad()
def along_images(pair: Pair, images: Decoded) -> Tensor:
    """Guided states of the target along images, (n, T, D): index t is that after t tokens."""
    tokens = torch.from_numpy(images.tokens).to(pair.device)
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
    conditions = pair.encode_conditions(images.asked)[0]
    none = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    _, hidden = pair.target.start(conditions, images.guidance).logits(inputs, none, hidden=True)
    return guided_states(hidden, images.guidance, len(tokens))


def _per_image(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Mean of each image that has any."""
    count = np.bincount(image)
    total = np.bincount(image, values)
    return np.asarray(total[count > 0] / count[count > 0])


def mean_of(values: np.ndarray, image: np.ndarray, least: float = -1.0, most: float = 1.0) -> list[float] | None:
    """[lower, mean of images' means, upper]; None from fewer than two images."""
    terms = _per_image(np.asarray(values, dtype=np.float64), image)
    if len(terms) < 2:
        return None
    return rounded(mean_interval([terms], CONFIDENCE, "normal", least=least, most=most, name="mean"))


def rounded(interval: Interval) -> list[float]:
    """[lower, value, upper] to four digits."""
    return [float(f"{x:.4g}") for x in interval]


def rank_correlation(a: np.ndarray, b: np.ndarray, image: np.ndarray) -> Interval:
    """Spearman's correlation with the jackknife's interval over images, ranks held fixed."""
    x, y = rankdata(a), rankdata(b)
    x, y = x - x.mean(), y - y.mean()
    _, group = np.unique(image, return_inverse=True)
    sums = np.stack([np.bincount(group, v) for v in (np.ones_like(x), x, y, x * x, y * y, x * y)])

    def correlation(s: np.ndarray) -> np.ndarray:
        n, sx, sy, xx, yy, xy = s
        return np.asarray((xy - sx * sy / n) / np.sqrt((xx - sx**2 / n) * (yy - sy**2 / n)))

    whole, count = sums.sum(axis=1), sums.shape[1]
    value = float(correlation(whole))
    with np.errstate(invalid="ignore", divide="ignore"):
        pseudo = count * value - (count - 1) * correlation(whole[:, None] - sums)
    ends = mean_interval([np.nan_to_num(pseudo)], CONFIDENCE, "normal", least=-1.0, most=1.0, name="correlation")
    return Interval(min(ends.lower, value), value, max(ends.upper, value), CONFIDENCE)


def _summary(table: Table, chosen: np.ndarray | None = None) -> dict[str, Any]:
    """What is said of a set of pairs of nodes."""
    some = np.ones(len(table["tv"]), dtype=bool) if chosen is None else chosen
    cos, tv, image, centred = (table[name][some] for name in ("cosine", "tv", "image", "centred"))
    within = np.digitize(cos, EDGES[1:-1])
    return {
        "pairs": len(cos),
        "cosine": mean_of(cos, image),
        "centred_cosine": mean_of(centred, image),
        "tv": mean_of(tv, image, least=0.0),
        "share_above": {f"{t:g}": mean_of(cos > t, image, least=0.0) for t in THRESHOLDS},
        "share_centred_above": {f"{t:g}": mean_of(centred > t, image, least=0.0) for t in THRESHOLDS},
        "tv_where_above": {f"{t:g}": mean_of(tv[cos > t], image[cos > t], least=0.0) for t in THRESHOLDS},
        "rank_correlation_with_tv": rounded(rank_correlation(cos, tv, image)),
        "rank_correlation_centred_with_tv": rounded(rank_correlation(centred, tv, image)),
        "histogram": np.bincount(within, minlength=len(EDGES) - 1).tolist(),
        "tv_by_bin": [float(f"{tv[within == i].mean():.4g}") if (within == i).any() else None for i in range(40)],
    }


@torch.no_grad()
def measure_properties(pair: Pair, images: Decoded, tree: Any, proposer: ProposerOf, seed: int = 0) -> dict[str, Any]:
    """Both properties on a pair, as plain data.

    Parameters
    ----------
    images : Decoded
        The target's own, for the mean state; as many images, of the same conditions, are decoded losslessly.
    tree : nested lists
        Static; at least two children of the root.
    proposer : function
        Who drafts.

    Raises
    ------
    ValueError
        A tree without siblings at its root.
    TypeError
        A model that cannot read trees.
    """
    shape = TreeShape(tree)
    if len(shape.children[0]) < 2:
        raise ValueError(f"the root has {len(shape.children[0])} child; siblings are compared, give it two")
    states = along_images(pair, images)
    image = np.repeat(np.arange(len(states)), states.shape[1] - 1)
    adjacent = cosine(states[:, 1:], states[:, :-1]).reshape(-1)
    noise = image_noise(seed, range(len(states)), pair.num_tokens, shape.nodes, pair.device)
    conditions = pair.encode_conditions(images.asked)
    recorder = Recorder(pair, conditions, noise, images.guidance, images.warp, shape, proposer)
    recorder.prepare(states.mean(dim=(0, 1)))
    play = partial(recorder.round, theory.Verifier(theory.Lossless()))
    run_rounds(recorder, play, pair.num_tokens)
    breadth, depths = recorder.breadth, recorder.depths
    width = pair.target.grid[1]
    row = breadth["position"] // width
    out = {
        "edges": EDGES.tolist(),
        "adjacent_tokens": {"cosine": mean_of(adjacent, image)},
        "siblings": _summary(breadth),
        "siblings_conditional_states": {
            "cosine": mean_of(breadth["conditional"], breadth["image"]),
            "rank_correlation_with_tv": rounded(
                rank_correlation(breadth["conditional"], breadth["tv"], breadth["image"])
            ),
        },
        "siblings_by_depth": {str(d): _summary(breadth, breadth["depth"] == d) for d in np.unique(breadth["depth"])},
        "siblings_by_image_row": {str(r): _summary(breadth, row == r) for r in np.unique(row)},
        "unrelated": _summary(recorder.unrelated),
        "convergence_by_distance": {},
    }
    for d in np.unique(depths["distance"]):
        at = depths["distance"] == d
        seen, tv, image = depths["seen"][at], depths["tv"][at], depths["image"][at]
        out["convergence_by_distance"][str(d)] = _summary(depths, at) | {
            "rank_correlation_of_what_the_rule_sees_with_tv": rounded(rank_correlation(seen, tv, image)),
            "tv_where_the_rule_sees_above": {
                f"{t:g}": mean_of(tv[seen > t], image[seen > t], least=0.0) for t in THRESHOLDS
            },
        }
    return out
