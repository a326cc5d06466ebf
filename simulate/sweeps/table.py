"""The tidy table: one row for each quantity of each cell, in grid order, with the same columns for every sweep.

Settings that do not apply are null. A cell that failed, or is infeasible as a whole, has one row without a quantity.
Equal cells give equal bytes: no times, no paths, no names of machines.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from simulate.sweeps.grid import CHAINS, Cell, chain_parameters


def columns() -> dict[str, str]:
    """Names of the columns, in order, with their Arrow types."""
    kinds = {"int": "int64", "int | None": "int64", "float": "float64"}
    chain: dict[str, str] = {}
    for kind in CHAINS:
        chain |= {name: kinds[p.annotation] for name, p in chain_parameters(kind).items()}
    return {
        "chain": "string",
        **chain,
        "seed": "int64",
        "draft_tv": "float64",
        "length": "int64",
        "catalogue": "string",
        "verifier": "string",
        "residual": "string",
        "strength": "float64",
        "analysis": "string",
        "tokens": "int64",
        "samples": "int64",
        "confidence": "float64",
        "quantity": "string",
        "claim": "string",
        "value": "float64",
        "lower": "float64",
        "upper": "float64",
        "status": "string",
        "message": "string",
        "cell": "string",
    }


def rows_of(cell: Cell, record: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Rows of one finished cell."""
    s, v = cell.settings, cell.settings["verifier"]
    flat = {"status": record["status"], "message": record["message"], "cell": cell.key, **s, **s["chain"]}
    flat |= {"chain": s["chain"]["kind"], "verifier": v["name"]}
    flat |= {key: v[key] for key in ("catalogue", "residual", "strength")}
    return [{**flat, **row} for row in record["rows"] or [{}]]


def parquet(cells: Iterable[tuple[Cell, dict[str, Any]]]) -> bytes:
    """The table as the bytes of a Parquet file. ImportError naming the extra if pyarrow is missing."""
    pyarrow = require_pyarrow()
    from pyarrow import parquet as format_

    kinds = columns()
    values: dict[str, list[Any]] = {name: [] for name in kinds}
    for cell, record in cells:
        for row in rows_of(cell, record):
            for name, column in values.items():
                column.append(row.get(name))
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in kinds.items()])
    out = io.BytesIO()
    format_.write_table(pyarrow.table(values, schema=schema), out, compression="zstd")
    return out.getvalue()


def require_pyarrow() -> Any:
    """pyarrow, or an ImportError that names the extra."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("a sweep writes Parquet with pyarrow; pip install 'relaxsd[sweep]'") from error
    return pyarrow
