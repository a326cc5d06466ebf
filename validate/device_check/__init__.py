"""What a machine's device does to decoding: golden data, law tests, the embedded pair, full-size networks, memory.

`python -m validate.device_check` runs independent sections within five minutes on a CUDA device (90 s and small sizes
without one, saying what was left out), writes one JSON file and prints one table.
"""

from validate.device_check.runner import SECTIONS, Section, Setting, run_checks, summary

__all__ = ["SECTIONS", "Section", "Setting", "run_checks", "summary"]
