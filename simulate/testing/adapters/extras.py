"""Frameworks that are imported when they are needed, with a message that names the extra."""

from __future__ import annotations

import importlib
from typing import Any


def needed(module: str, extra: str) -> Any:
    """The module, or an ImportError that says which extra of relaxsd brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f'{package} is missing or cannot be imported: pip install "relaxsd[{extra}]" ({error})'
        ) from error
