"""Sweeps: many settings, one tidy table, resumable.

* `grid`       what a sweep computes: axes and cells
* `axes`       its values, checked
* `catalogue`  verifiers by name
* `identity`   when an old result may be used
* `cells`      one cell computed
* `store`      files and locks
* `table`      the Parquet table
* `run`        `sweep` itself
* `command`    ``python -m simulate sweep FILE.toml``
"""

from simulate.sweeps.grid import Grid
from simulate.sweeps.run import Sweep, sweep
from simulate.sweeps.store import SweepBusyError, SweepError

__all__ = ["Grid", "Sweep", "SweepBusyError", "SweepError", "sweep"]
