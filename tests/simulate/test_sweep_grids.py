"""What a sweep computes: grids, their errors, and cells against the functions they stand for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulate
import theory
from simulate.sweeps import catalogue, cells, table
from simulate.sweeps.grid import Cell, Grid
from tests.simulate import sweep_rules

ROOT = Path(__file__).resolve().parents[2]
MARKOV = {"kind": "random_markov", "vocab_size": 4}


def small(**changes: Any) -> dict[str, Any]:
    """A grid of one cell, with changes."""
    grid: dict[str, Any] = {"analyses": "round", "chains": MARKOV, "draft_tv": 0.3, "length": 2, "seeds": 0}
    grid["verifiers"] = {"schedule": "uniform", "strength": 0.5}
    return {k: v for k, v in {**grid, **changes}.items() if v is not None}


def only_cell(**changes: Any) -> Cell:
    (cell,) = Grid.from_mapping(small(**changes)).cells()
    return cell


def values(record: dict[str, Any]) -> dict[str, float]:
    """Quantity → value of a computed cell."""
    assert record["status"] == "ok", record["traceback"]
    return {row["quantity"]: row["value"] for row in record["rows"]}


def pair(cell: Cell) -> Any:
    """Target and draft of a cell, made here."""
    seed, parameters = cell.settings["seed"], dict(cell.settings["chain"])
    name = json.dumps(parameters, sort_keys=True)
    make = getattr(simulate, parameters.pop("kind"))
    made = make(**parameters, rng=cells.rng_for(seed, "chain", name))
    target = made.chain if isinstance(made, simulate.EmbeddingChain) else made
    draft = simulate.make_draft(target, cell.settings["draft_tv"], cells.rng_for(seed, "draft", name))
    return made, target, draft


class TestCells:
    """A cell's numbers are those of the function it stands for."""

    @pytest.mark.parametrize(
        "chain",
        [
            MARKOV,
            {"kind": "dirichlet_iid", "vocab_size": 5, "concentration": 0.5},
            {"kind": "dirichlet_tree", "vocab_size": 3, "depth": 4},
            {"kind": "potts_grid", "height": 2, "width": 2, "colours": 3},
            {"kind": "embedding_chain", "vocab_size": 8, "dim": 2},
        ],
        ids=lambda chain: chain["kind"],
    )
    def test_round_and_sequence(self, chain: dict[str, Any]) -> None:
        """Every kind of chain, block verification, against the exact analyses."""
        verifiers = {"block": "capped uniform", "strength": 0.4}
        cell = only_cell(chains=chain, verifiers=verifiers, seeds=3)
        _, target, draft = pair(cell)
        verifier = theory.capped_block(math.exp(0.4))
        a = theory.analyse_round(target, draft, verifier, 2)
        assert values(cells.compute(cell.settings)) == {
            "accepted_length": a.expected_accepted,
            "tokens_per_call": a.tokens_per_call,
            "tv_bound": a.tv_bound,
            "total_variation": a.total_variation,
            "kl_output_target": a.kl_output_target,
            "kl_target_output": a.kl_target_output,
        }
        cell = only_cell(chains=chain, verifiers=verifiers, seeds=3, analyses="sequence", tokens=4)
        s = theory.analyse_sequence(target, draft, verifier, 2, 4)
        found = values(cells.compute(cell.settings))
        assert found["tokens_per_call"] == s.tokens_per_call
        assert found["kl_output_target"] == s.kl_output_target
        assert 4 * found["predictive_kl_output_target"] == pytest.approx(s.kl_output_target, abs=1e-12)
        assert set(found) == {
            *("tokens_per_call", "tv_bound", "hellinger"),
            *cells.DISTANCES,
            *cells.PREDICTIVE,
        }

    def test_estimate(self) -> None:
        """An estimate's rows are the intervals of `estimate`, from the cell's own stream."""
        cell = only_cell(analyses="estimate", tokens=6, samples=60)
        _, target, draft = pair(cell)
        verifier = theory.Verifier(theory.Relaxed(math.exp(0.5)))
        rng = cells.rng_for(0, "samples", cell.settings)
        expected = simulate.estimate(target, draft, verifier, 2, 6, 60, rng).intervals()
        rows = cells.compute(cell.settings)["rows"]
        assert [row["quantity"] for row in rows] == list(expected)
        for row in rows:
            assert (row["lower"], row["value"], row["upper"]) == tuple(expected[row["quantity"]])
            assert row["claim"] == "estimate"

    def test_rules_that_pool(self) -> None:
        """LANTERN takes the embedding chain's codebook; without one it is infeasible, not failed."""
        verifiers = {"rule": "LANTERN", "residual": "dynamic", "strength": 0.2}
        cell = only_cell(chains={"kind": "embedding_chain", "vocab_size": 8, "dim": 2}, verifiers=verifiers)
        made, target, draft = pair(cell)
        near = theory.nearest_neighbours(made.embedding, 7)
        verifier = theory.lantern_verifier(near, 2, delta=0.2, branch="dynamic")
        expected = theory.analyse_round(target, draft, verifier, 2)
        assert values(cells.compute(cell.settings))["total_variation"] == expected.total_variation
        record = cells.compute(only_cell(verifiers=verifiers).settings)
        assert record["status"] == "infeasible"
        assert "embedding" in record["message"]

    def test_one_pair_for_all_verifiers(self) -> None:
        """Chain and draft depend on kind, parameters and seed only; another seed gives others."""
        lossless = [only_cell(verifiers={"rule": "lossless"}, seeds=seed) for seed in (0, 1)]
        numbers = [values(cells.compute(cell.settings))["accepted_length"] for cell in lossless]
        zero = values(cells.compute(only_cell(verifiers={"schedule": "uniform", "strength": 0.0}).settings))
        assert zero["accepted_length"] == pytest.approx(numbers[0], abs=1e-15)
        assert abs(numbers[0] - numbers[1]) > 1e-3

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"chains": {"kind": "dirichlet_tree", "vocab_size": 3, "depth": 2}}, "2 levels but a round of 2"),
            ({"chains": {"kind": "dirichlet_tree", "vocab_size": 9, "depth": 99}}, "a tree of 99 tokens over 9"),
            ({"length": 30, "verifiers": {"block": "capped uniform", "strength": 0.1}}, "a round of 30 tokens"),
            ({"analyses": "estimate", "chains": {"kind": "potts_grid", "height": 1, "width": 2, "colours": 2},
              "tokens": 3, "samples": 4}, "3 tokens"),
        ],
    )  # fmt: skip
    def test_infeasible(self, changes: dict[str, Any], message: str) -> None:
        """What cannot be computed is named, not tried."""
        record = cells.compute(only_cell(**changes).settings)
        assert (record["status"], record["rows"]) == ("infeasible", [])
        assert message in record["message"]

    def test_partly_infeasible(self) -> None:
        """A long round between Markov chains has a cost and a bound, but no law."""
        record = cells.compute(only_cell(length=30).settings)
        assert record["status"] == "ok"
        rows = {row["quantity"]: row for row in record["rows"]}
        assert rows["tv_bound"]["value"] > 0
        assert rows["total_variation"]["status"] == "infeasible"
        assert "31 tokens over 4" in rows["total_variation"]["message"]

    def test_failure(self) -> None:
        """An exception is the cell's result, without addresses of memory."""

        def broken(strength: float, length: int) -> Any:
            raise LookupError(f"no {object()}")

        record = cells.compute(only_cell().settings, broken)
        assert record["status"] == "failed"
        assert record["message"] == "LookupError: no <object object>"
        assert "broken" in record["traceback"]


class TestCatalogue:
    """Every name of the three catalogues can be built."""

    def test_all_names(self) -> None:
        points = np.arange(8.0)[:, None]
        families = [("schedule", n, None) for n in theory.schedule_families(2)]
        families += [("block", n, None) for n in ("lifted uniform", "capped excess")]
        families += [("rule", f.rule, f.residual) for f in theory.rule_families(points, 2)]
        families += [("rule", name, None) for name in catalogue.WITHOUT_STRENGTH]
        p, q = np.full(8, 1 / 8), np.arange(1.0, 9.0) / 36
        for kind, name, residual in families:
            family = catalogue.find(kind, name, residual, 2, points)
            strength = None if name in catalogue.WITHOUT_STRENGTH else max(family.low, min(family.high, 1.0))
            output = family.build(strength).step(p, q, 0).output
            assert float(output.sum()) == pytest.approx(1.0), (kind, name, residual)
        assert len(families) > 50

    def test_pooling_rules_are_those_that_need_rows(self) -> None:
        """Only they change with the codebook."""
        assert catalogue.pooling_rules() == {
            *("LANTERN", "LANTERN++", "GSD", "GSD, repaired", "GSD, fixed partition"),
            *("MuLo-SD pooling", "CASCADE-style"),
        }

    def test_published_residual_is_the_default(self) -> None:
        assert catalogue.find("rule", "Cactus", None, 2, None).residual == "published"
        assert catalogue.find("rule", "COOL-SD", None, 2, None).residual == "optimal"
        with pytest.raises(ValueError, match="several residuals; name one of llamagen_static"):
            catalogue.find("rule", "LANTERN", None, 2, None)


class TestGrid:
    """Axes, their order and their errors."""

    def test_order_and_count(self) -> None:
        """The product in the order of the table; settings that an analysis does not use make no cells."""
        grid = Grid.from_mapping(
            small(
                analyses=["round", "sequence", "estimate"],
                chains=[{**MARKOV, "concentration": [0.5, 1]}, {"kind": "dirichlet_iid", "vocab_size": 3}],
                seeds=range(2),
                length=[1, 2],
                tokens=np.array([3, 4, 5]),
                samples=8,
            )
        )
        found = grid.cells()
        assert len(found) == 3 * 2 * 2 * (1 + 3 + 3)
        assert len({cell.key for cell in found}) == len(found)
        assert [cell.settings.get("tokens") for cell in found[:7]] == [None, 3, 4, 5, 3, 4, 5]
        assert [cell.settings["seed"] for cell in found[::14]] == [0, 1] * 3
        for cell in found:
            (row,) = table.rows_of(cell, {"rows": [], "status": "ok", "message": ""})
            assert set(row) <= {*table.columns(), "kind"}, cell.label

    def test_key_is_of_the_setting(self) -> None:
        """Written-out defaults, ints for floats and other axes change no key; every setting does."""
        key = only_cell().key
        assert only_cell(chains={**MARKOV, "concentration": 1}).key == key
        assert Grid.from_mapping(small(length=[3, 2], seeds=[4, 0])).cells()[3].key == key
        for changes in (
            {"seeds": 1},
            {"draft_tv": 0.31},
            {"length": 3},
            {"chains": {**MARKOV, "concentration": 1.5}},
            {"verifiers": {"schedule": "uniform", "strength": 0.51}},
            {"verifiers": {"schedule": "reversed", "strength": 0.5}},
            {"analyses": "sequence", "tokens": 3},
        ):
            assert only_cell(**changes).key != key, changes

    def test_key_is_of_the_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Other sources or libraries, another key."""
        before = only_cell().key
        monkeypatch.setattr("simulate.sweeps.grid.code_fingerprint", lambda: "other")
        assert only_cell().key != before

    @given(order=st.permutations(range(4)))
    def test_order_of_axes_changes_no_cell(self, order: list[int]) -> None:
        """The same cells in another order."""
        straight = {cell.key for cell in Grid.from_mapping(small(seeds=range(4))).cells()}
        assert {cell.key for cell in Grid.from_mapping(small(seeds=order)).cells()} == straight

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"lenght": 3}, "unknown key 'lenght'; did you mean 'length'?"),
            ({"length": None}, "the key 'length' is missing"),
            ({"length": []}, "length is empty; give at least one value"),
            ({"length": [2, 3.5]}, r"length\[1\] must be a whole number >= 1, got 3.5"),
            ({"length": [2, True]}, r"length\[1\] must be a whole number"),
            ({"length": [2, 4, 2]}, r"length\[2\] repeats length\[0\]: 2"),
            ({"seeds": -1}, "seeds must be a whole number >= 0"),
            ({"draft_tv": "0.3"}, "draft_tv must be a finite number, got '0.3'"),
            ({"draft_tv": [0.1, 1.5]}, r"draft_tv\[1\] must lie in \[0, 1\]"),
            ({"draft_tv": math.nan}, "draft_tv must be a finite number"),
            ({"analyses": "rounds"}, r"analyses\[0\]: unknown analysis 'rounds'; did you mean 'round'?"),
            ({"analyses": 3}, "analyses must be a string"),
            ({"analyses": "sequence"}, "tokens is missing, but 'sequence' and 'estimate' alone"),
            ({"tokens": 4}, "tokens is given, but 'sequence' and 'estimate' alone"),
            ({"analyses": "estimate", "tokens": 3}, "samples is missing"),
            ({"analyses": "estimate", "tokens": 3, "samples": 3}, "samples must be a whole number >= 4"),
            ({"confidence": 1.0}, "confidence must lie between"),
            ({"chains": []}, "chains is empty"),
            ({"chains": "random_markov"}, "chains must be a list of tables"),
            ({"chains": {"vocab_size": 3}}, r"chains\[0\] needs a kind: dirichlet_tree"),
            ({"chains": {"kind": "markov"}}, r"chains\[0\]: unknown kind of chain 'markov'; did you mean 'random_mar"),
            ({"chains": {**MARKOV, "vocabsize": 4}}, r"chains\[0\]: unknown key 'vocabsize'; did you mean 'vocab_siz"),
            ({"chains": {"kind": "random_markov"}}, r"chains\[0\] needs vocab_size"),
            ({"chains": {**MARKOV, "vocab_size": 0}}, r"chains\[0\].vocab_size must be a whole number >= 1"),
            ({"chains": {**MARKOV, "concentration": [1.0, 1]}}, r"chains\[0\].concentration\[1\] repeats"),
            ({"chains": [MARKOV, {**MARKOV, "concentration": [2, 1]}]}, r"chains\[1\] repeats a setting of chains\[0"),
            ({"verifiers": {"strength": 1}}, r"verifiers\[0\] must name its verifier by one of the keys"),
            ({"verifiers": {"schedule": "uniform", "block": "x"}}, r"verifiers\[0\] must name its verifier"),
            ({"verifiers": {"schedule": "unifrom", "strength": 1}}, "unknown schedule 'unifrom'; did you mean 'unif"),
            ({"verifiers": {"rule": "Catcus", "strength": 1}}, "did you mean 'Cactus'?"),
            ({"verifiers": {"rule": "Cactus", "residual": "best", "strength": 1}}, "unknown residual of rule 'Cactus'"),
            ({"verifiers": {"schedule": "uniform"}}, r"verifiers\[0\]: schedule 'uniform' needs a strength"),
            ({"verifiers": {"schedule": "unifrom"}}, "unknown schedule 'unifrom'; did you mean 'uniform'"),
            ({"verifiers": {"rule": "Lossless"}}, "unknown rule 'Lossless'; did you mean 'lossless'"),
            ({"verifiers": {"schedule": "uniform", "strength": [1, 1e3]}}, r"verifiers\[0\].strength\[1\]: math range"),
            ({"seeds": 10**30}, "seeds must be at most 9223372036854775807, got 1000000000000000000000000000000"),
            ({"verifiers": {"rule": "lossless", "strength": 1}}, "rule 'lossless' takes no strength"),
            ({"verifiers": {"schedule": "uniform", "strength": [1, -1]}}, r"strength\[1\]: strength must be >="),
            ({"verifiers": {"rule": "ensemble", "strength": [1, 1.5]}}, r"strength\[1\]: eta must be finite"),
            ({"verifiers": {"schedule": "uniform", "strength": 1, "delta": 1}}, r"verifiers\[0\]: unknown key 'delta'"),
            ({"verifiers": [{"schedule": "uniform", "strength": s} for s in ([1, 2], [3, 2])]}, r"verifiers\[1\] repe"),
            ({"verifiers": {"own": "module.rule", "name": "x"}}, r"verifiers\[0\]: own must be a function"),
            ({"verifiers": {"own": sweep_rules.slow}}, "with a name beside it"),
            ({"length": [1, 2], "verifiers": {"rule": "COOL-SD", "strength": 1}}, "at length 1: unknown rule 'COOL"),
        ],
    )  # fmt: skip
    def test_errors_name_the_place(self, changes: dict[str, Any], message: str) -> None:
        mapping = {key: value for key, value in {**small(), **changes}.items() if value is not None}
        with pytest.raises(ValueError, match=message):
            Grid.from_mapping(mapping)

    def test_toml(self, tmp_path: Path) -> None:
        """A file says the same as a dict; its errors name the file, and the line or key."""
        path = tmp_path / "grid.toml"
        text = """
            analyses = ["round", "sequence"]
            draft_tv = 0.3
            length = 2
            tokens = 4
            seeds = [0, 1]
            [[chains]]
            kind = "random_markov"
            vocab_size = 4
            [[verifiers]]
            schedule = "uniform"
            strength = [0.25, 0.5]
        """
        path.write_text(text, encoding="utf-8")
        verifiers = {"schedule": "uniform", "strength": [0.25, 0.5]}
        twin = Grid.from_mapping(small(analyses=["round", "sequence"], tokens=4, seeds=[0, 1], verifiers=verifiers))
        assert [cell.key for cell in Grid.from_toml(path).cells()] == [cell.key for cell in twin.cells()]
        path.write_text(text.replace("vocab_size = 4", "vocab_size = 4.5"), encoding="utf-8")
        with pytest.raises(ValueError, match=r"grid.toml: chains\[0\].vocab_size must be a whole number"):
            Grid.from_toml(path)
        path.write_text("length = = 2", encoding="utf-8")
        with pytest.raises(ValueError, match=r"grid.toml: .*line 1"):
            Grid.from_toml(path)
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(ValueError, match=r"grid.toml: .*utf-8"):
            Grid.from_toml(path)
