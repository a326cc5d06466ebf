"""Simulation of relaxed speculative decoding: synthetic chains, block decoding, estimates with intervals."""

from simulate.coverage import coverage_table
from simulate.decoded import Decoded, DecodedRound
from simulate.decoding import CompiledRound, compile_round, decode, decode_round, sample
from simulate.drafts import make_draft
from simulate.draws import Streams, categorical, streams
from simulate.estimates import Estimate, Predictive, Roc
from simulate.estimation import estimate, estimate_from_filters, filter_sequences
from simulate.intervals import Interval
from simulate.jacobi import decode_jacobi
from simulate.laws import teacher_forced
from simulate.sweeps import Grid, Sweep, sweep
from simulate.synthetic import (
    EmbeddingChain,
    GridChain,
    dirichlet_iid,
    dirichlet_tree,
    embedding_chain,
    potts_grid,
    random_markov,
)
from simulate.tree_decoding import decode_tree, decode_tree_round
from simulate.verification import Verified, sampler, verify

__all__ = [
    "CompiledRound",
    "Decoded",
    "DecodedRound",
    "EmbeddingChain",
    "Estimate",
    "Grid",
    "GridChain",
    "Interval",
    "Predictive",
    "Roc",
    "Streams",
    "Sweep",
    "Verified",
    "categorical",
    "compile_round",
    "coverage_table",
    "decode",
    "decode_jacobi",
    "decode_round",
    "decode_tree",
    "decode_tree_round",
    "dirichlet_iid",
    "dirichlet_tree",
    "embedding_chain",
    "estimate",
    "estimate_from_filters",
    "filter_sequences",
    "make_draft",
    "potts_grid",
    "random_markov",
    "sample",
    "sampler",
    "streams",
    "sweep",
    "teacher_forced",
    "verify",
]
