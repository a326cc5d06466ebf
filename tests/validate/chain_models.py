"""Chains as image models: laws looked up in tables, trees read node by node. No attention, hence an oracle of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import theory
from simulate.laws import laws_at
from validate.models import Pair
from validate.models.forest import Forest


class ChainSequences:
    """Remembers tokens instead of keys and values; its logits are log-probabilities."""

    scratch = 1

    def __init__(self, chain: theory.Chain, rows: int, total: int) -> None:
        self.chain, self.rows, self.total = chain, rows, total
        # Column t holds the input of index t; column 0 is START.
        self.inputs = np.zeros((rows, total + 1), dtype=np.int64)
        self.nodes = np.zeros((rows, 0), dtype=np.int64)

    def _laws(self, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        laws = laws_at(self.chain, np.maximum(tokens, 0), np.minimum(lengths, self.total - 1))
        with np.errstate(divide="ignore"):
            return np.log(laws)

    def logits(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        out = []
        for j in range(inputs.shape[1]):
            at = lengths.numpy() + j
            self.inputs[np.arange(self.rows), np.minimum(at, self.total)] = inputs[:, j].numpy()
            out.append(self._laws(self.inputs[:, 1:], at))
        return torch.from_numpy(np.stack(out, 1))

    def tree_logits(
        self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int = 0, *, hidden: bool = False
    ) -> Any:
        self.nodes = np.concatenate([self.nodes[:, :first], inputs.numpy()], axis=1)
        parents, out = forest.parents[0].tolist(), []
        for node in range(first, first + inputs.shape[1]):
            tokens, path = self.inputs.copy(), [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            for depth, step in enumerate(path):
                at = np.minimum(lengths.numpy() + depth, self.total)
                tokens[np.arange(self.rows), at] = self.nodes[:, step]
            out.append(self._laws(tokens[:, 1:], lengths.numpy() + len(path) - 1))
        logits = torch.from_numpy(np.stack(out, 1))
        return (logits, torch.zeros(*logits.shape[:2], 1)) if hidden else logits

    def keep_path(self, nodes: Tensor, counts: Tensor, lengths: Tensor) -> None:
        for b, count in enumerate(counts.tolist()):
            for i in range(count):
                self.inputs[b, min(int(lengths[b]) + i, self.total)] = self.nodes[b, int(nodes[b, i])]

    def keep(self, rows: Tensor) -> None:
        self.inputs, self.nodes, self.rows = self.inputs[rows.numpy()], self.nodes[rows.numpy()], len(rows)


class ChainModel:
    """An unconditional `ImageModel` of `total` tokens."""

    unconditional, device = True, torch.device("cpu")

    def __init__(self, chain: theory.Chain, total: int) -> None:
        self.chain, self.num_tokens, self.grid, self.vocab_size = chain, total, (1, total), chain.vocab_size

    def encode_conditions(self, conditions: Any) -> Tensor:
        return torch.zeros(int(conditions), dtype=torch.int64)

    def start(self, conditions: Any, guidance: float = 1.0) -> ChainSequences:
        return ChainSequences(self.chain, len(conditions), self.num_tokens)


def chain_pair(target: theory.Chain, draft: theory.Chain, total: int) -> Pair:
    """Both chains as models of images of `total` tokens."""
    tokenizer: Any = SimpleNamespace(vocab_size=target.vocab_size, num_tokens=total, grid=(1, total))
    models: list[Any] = [ChainModel(chain, total) for chain in (target, draft)]
    return Pair("chains", models[0], {"chain": models[1]}, "chain", tokenizer, guidance=1.0)
