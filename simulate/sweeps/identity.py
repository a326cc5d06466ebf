"""What a result depends on, as a hash: a changed definition never finds an old result.

Two hashes enter the key of a cell beside its settings:

* `code_fingerprint`: the sources that compute cells and the versions of NumPy and SciPy;
* `definition` of a verifier that comes from outside this package: the compiled code of the function that builds it,
  its defaults and closure, and, recursively, the functions, classes and plain values of its own module that it names.
  Comments and line numbers do not count. Other modules count by name only, and so do objects that keep their state
  outside ``__dict__``: whoever changes those names a new `version`.

>>> def factory(scale):
...     return lambda strength, length: scale * strength
>>> definition(factory(2)) == definition(factory(2)), definition(factory(2)) == definition(factory(3))
(True, False)
"""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import re
import sys
import types
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import theory

DIGITS = 32
"""Hexadecimal digits kept of a hash: 128 bits."""

LIBRARIES = ("numpy", "scipy")

_BOOKKEEPING = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(text: str) -> str:
    """Text without memory addresses, which differ from run to run."""
    return _ADDRESS.sub("", text)


def digest(value: Any) -> str:
    """Hash of a JSON-able value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _sources() -> Iterator[tuple[str, Path]]:
    root = Path(theory.__file__).parent
    here = Path(__file__).parent
    yield from ((f"theory/{file.relative_to(root).as_posix()}", file) for file in sorted(root.rglob("*.py")))
    left_out = {"__init__.py", "__main__.py", "coverage.py"}
    yield from ((f"simulate/{f.name}", f) for f in sorted(here.parent.glob("*.py")) if f.name not in left_out)
    yield from ((f"simulate/sweeps/{name}", here / name) for name in ("catalogue.py", "cells.py"))


@functools.cache
def code_fingerprint() -> str:
    """Hash of the sources that compute a cell and of the libraries they stand on; the same on every machine."""
    parts = [[name, hashlib.sha256(file.read_bytes()).hexdigest()] for name, file in _sources()]
    for name in LIBRARIES:
        try:
            parts.append([name, version(name)])
        except PackageNotFoundError:
            parts.append([name, str(sys.modules[name].__version__)])
    return digest(parts)


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


class _Reader:
    """Turns objects into hashes of what they compute; looks into functions and classes of the module `home` only."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.known: dict[int, tuple[Any, str]] = {}  # the object is kept, so that its id is not given to another
        self.open: list[int] = []

    def hash(self, value: Any) -> str:
        if id(value) in self.open:
            return f"cycle {self.open.index(id(value))}"
        if id(value) not in self.known:
            self.open.append(id(value))
            self.known[id(value)] = value, digest(self.content(value))
            self.open.pop()
        return self.known[id(value)][1]

    def content(self, value: Any) -> Any:
        kind = type(value).__name__
        if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
            return [kind, repr(value)]
        if isinstance(value, np.ndarray):
            bytes_of = np.ascontiguousarray(value).tobytes()
            return [kind, str(value.dtype), list(value.shape), hashlib.sha256(bytes_of).hexdigest()]
        if isinstance(value, (list, tuple)):
            return [kind, [self.hash(x) for x in value]]
        if isinstance(value, (set, frozenset)):
            return [kind, sorted(self.hash(x) for x in value)]
        if isinstance(value, dict):
            return [kind, [[self.hash(k), self.hash(v)] for k, v in value.items()]]
        if isinstance(value, types.ModuleType):
            return [kind, value.__name__]
        if isinstance(value, functools.partial):
            return [kind, self.hash(value.func), self.hash(value.args), self.hash(value.keywords)]
        if isinstance(value, types.MethodType):
            return [kind, self.hash(value.__func__), self.hash(value.__self__)]
        if isinstance(value, (staticmethod, classmethod)):
            return [kind, self.hash(value.__func__)]
        if isinstance(value, property):
            return [kind, *(self.hash(f) for f in (value.fget, value.fset, value.fdel))]
        if isinstance(value, types.FunctionType) and value.__module__ == self.home:
            cells = [self.hash(c.cell_contents) for c in value.__closure__ or ()]
            parts = value.__defaults__, value.__kwdefaults__
            return [kind, self.code(value.__code__, value.__globals__), cells, *(self.hash(x) for x in parts)]
        if isinstance(value, type) and value.__module__ == self.home:
            members = {k: v for k, v in vars(value).items() if k not in _BOOKKEEPING}
            bases = [self.hash(base) for base in value.__bases__]
            return [kind, value.__qualname__, bases, {k: self.hash(v) for k, v in members.items()}]
        if hasattr(value, "__qualname__"):
            return [kind, _name(value)]
        return [kind, self.hash(type(value)), {k: self.hash(v) for k, v in getattr(value, "__dict__", {}).items()}]

    def code(self, code: types.CodeType, scope: dict[str, Any]) -> Any:
        inner = [self.code(c, scope) if isinstance(c, types.CodeType) else self.hash(c) for c in code.co_consts]
        names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        used = {name: self.hash(scope[name]) for name in names if name in scope}
        variables = [code.co_varnames, code.co_names, code.co_freevars, code.co_cellvars]
        return [code.co_code.hex(), code.co_argcount, code.co_kwonlyargcount, code.co_flags, variables, inner, used]


def definition(build: Any, name_of_version: str = "") -> str:
    """Hash of what a function or callable object from outside this package computes, as far as it can be seen.

    Parameters
    ----------
    build : callable
    name_of_version : str
        Enters the hash; for changes that the module docstring says cannot be seen.

    Notes
    -----
    Compiled code differs between versions of Python: under another one such cells are computed again.
    """
    first = build.func if isinstance(build, functools.partial) else build
    home = first.__module__ if hasattr(first, "__qualname__") else type(first).__module__
    return digest([name_of_version, _Reader(home).hash(build)])
