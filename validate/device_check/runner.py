"""Sections of the device check: each has its own time, and what fails in one does not stop the others.

A section writes numbers into its record and *checks* beside them: what, value, limit, passed. It is "passed" if all
checks are, "failed" if one is not or an error ended it (the error is recorded with what was found before), "left out"
with the reason otherwise. A section asks how much of its time is left between its parts and stops there; nothing is
interrupted in the middle.
"""

from __future__ import annotations

import datetime
import platform
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simulate.files import write_json
from validate.device_check import full_size, golden, sections

__all__ = ["SECTIONS", "Section", "Setting", "run_checks", "summary"]


@dataclass(frozen=True)
class Setting:
    """What a section is run with."""

    device: torch.device
    quick: bool
    golden: Path | None
    seconds: float
    timer: Callable[[], float] = time.perf_counter
    _began: list[float] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Seconds this section may still take."""
        if not self._began:
            self._began.append(self.timer())
        return self.seconds - (self.timer() - self._began[0])


@dataclass(frozen=True)
class Section:
    """One part of the check: a job that fills a record, and its seconds on CUDA and on the CPU."""

    name: str
    job: Callable[[Any, dict[str, Any]], None]
    cuda_seconds: float
    cpu_seconds: float


SECTIONS = (
    Section("golden", golden.golden_section, 45, 25),
    Section("law", sections.law_section, 60, 20),
    Section("embedded", sections.embedded_section, 45, 20),
    Section("full_size", full_size.full_size_section, 110, 15),
    Section("memory", sections.memory_section, 20, 5),
)


def _machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on; no host name, no path."""
    told: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told |= {"name": properties.name, "gib": properties.total_memory / 2**30, "cuda": torch.version.cuda}
    return told


def _run(section: Section, setting: Setting) -> dict[str, Any]:
    record: dict[str, Any] = {"checks": []}
    if setting.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(setting.device)
    began = setting.timer()
    try:
        setting.left  # noqa: B018  (starts the section's time)
        section.job(setting, record)
        failed = [check["what"] for check in record["checks"] if not check["passed"]]
        record["status"] = "failed" if failed else "passed"
        if failed:
            record["error"] = f"{len(failed)} of {len(record['checks'])} checks: {'; '.join(failed)}"
        elif not record["checks"]:
            record["status"] = "left out"
    except Exception as error:
        # Whatever goes wrong here is a finding about this machine, not a reason to lose the other sections.
        record["status"], record["error"] = "failed", f"{type(error).__name__}: {error}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        record["where"] = f"{Path(where.filename).name}:{where.lineno} in {where.name}"
    record["seconds"] = round(setting.timer() - began, 2)
    if setting.cuda:
        record["peak_gib"] = round(torch.cuda.max_memory_allocated(setting.device) / 2**30, 3)
    return record


def run_checks(
    device: torch.device,
    *,
    out: Path | None = None,
    names: Sequence[str] | None = None,
    quick: bool = False,
    golden_data: Path | None = None,
    sections: Sequence[Section] = SECTIONS,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run sections and, after each, write the report as far as it goes.

    Parameters
    ----------
    device : torch.device
    out : Path, optional
        JSON file, replaced whole.
    names : sequence of str, optional
        Sections to run; all by default.
    quick : bool
        CPU sizes on any device.
    golden_data : Path, optional
        Folder of the golden data; by default looked for beside the package.
    sections : sequence of Section
    say : callable
        Told a line before each section.

    Returns
    -------
    dict
        "machine", "quick", "sections" (name to record), "left_out", "passed".

    Raises
    ------
    ValueError
        A name that is no section; names it and the known ones.
    """
    known = [section.name for section in sections]
    wrong = [name for name in names or () if name not in known]
    if wrong:
        raise ValueError(f"unknown section {wrong[0]!r}; sections are {', '.join(known)}")
    small = quick or device.type != "cuda"
    report: dict[str, Any] = {"machine": _machine(device), "quick": quick, "sections": {}, "left_out": []}
    if device.type != "cuda":
        report["left_out"].append(
            "no CUDA device: nothing here was run on one. Left out: golden data and laws on CUDA, networks of full "
            "size, CUDA memory, waits of a round"
        )
    for section in sections:
        if names and section.name not in names:
            report["left_out"].append(f"section {section.name}: not asked for")
            continue
        say(f"{section.name} …")
        seconds = section.cpu_seconds if small else section.cuda_seconds
        setting = Setting(device, small, golden_data, seconds)
        report["sections"][section.name] = _run(section, setting)
        report["passed"] = all(record["status"] != "failed" for record in report["sections"].values())
        if out is not None:
            write_json(out, report)
    return report


def summary(report: dict[str, Any]) -> str:
    """One table: a line for each section, then what was left out."""
    machine = report["machine"]
    lines = [
        f"device check on {machine.get('name', machine['device'])}, torch {machine['torch']}, "
        f"python {machine['python']}",
        f"{'section':12}{'status':10}{'seconds':>8}{'checks':>8}{'peak GiB':>10}  what",
    ]
    for name, record in report["sections"].items():
        peak = f"{record['peak_gib']:.2f}" if "peak_gib" in record else "-"
        told = record.get("error") or record.get("summary", "")
        lines.append(
            f"{name:12}{record['status']:10}{record['seconds']:8.1f}{len(record['checks']):8}{peak:>10}  {told}"
        )
        lines += [f"{'':12}left out: {reason}" for reason in record.get("left_out", [])]
    return "\n".join(lines + [f"left out: {reason}" for reason in report["left_out"]])
