"""Tables read back to what was written."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paper_figures import tables

CELL = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(alphabet="abc ,\"'\nωé|", min_size=1).map(lambda s: "s" + s),
)


def in_order(rows: tables.Rows) -> tables.Rows:
    """The same columns in the same order in every row, as tables need."""
    return [{key: row[key] for key in rows[0]} for row in rows]


@given(st.lists(st.fixed_dictionaries({"a": CELL, "b, c": CELL}), min_size=1, max_size=5).map(in_order))
def test_round_trip(rows: tables.Rows) -> None:
    """Values come back with their types, and writing again gives the same bytes."""
    text = tables.dumps(rows)
    back = tables.loads(text)
    assert back == rows
    assert [[type(v) for v in row.values()] for row in back] == [[type(v) for v in row.values()] for row in rows]
    assert tables.dumps(back) == text


def test_infinity_nan_and_numpy() -> None:
    """Special floats survive; NumPy scalars become plain ones."""
    row = tables.loads(tables.dumps([{"i": math.inf, "n": math.nan, "f": np.float64(0.1), "k": np.int64(3)}]))[0]
    assert row["i"] == math.inf
    assert math.isnan(row["n"])
    assert (row["f"], row["k"]) == (0.1, 3)


@pytest.mark.parametrize("word", ["", "1", "nan", "1e3", "True"])
def test_ambiguous_strings_are_refused(word: str) -> None:
    """A string that would come back as something else is named."""
    with pytest.raises(ValueError, match="row 1, column 'a'"):
        tables.dumps([{"a": "fine"}, {"a": word}])


def test_uneven_rows_and_odd_values_are_refused() -> None:
    """Each refusal says where."""
    with pytest.raises(ValueError, match="no rows"):
        tables.dumps([])
    with pytest.raises(ValueError, match="row 1 has columns"):
        tables.dumps([{"a": 1}, {"b": 1}])
    with pytest.raises(TypeError, match=r"row 0, column 'a'.*list"):
        tables.dumps([{"a": [1]}])
