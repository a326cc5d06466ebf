"""An output folder with the recorded tables in it and small pictures, as if the figures had just been made."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path

from paper_figures import gallery, record, registry, tables
from paper_figures.page import answers
from paper_figures.store import Store
from tests.figures.helpers import figure


def _png() -> bytes:
    """One white pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff")) + chunk(b"IEND", b"")
    )


def recorded_store(folder: Path) -> Store:
    """The store, with its page written."""
    store, state = Store(folder), {}
    for name in answers.NEEDED:
        chosen, text = figure(name), (record.FOLDER / f"{name}.csv").read_text(encoding="utf-8")
        rows = tables.loads(text)
        contents = {"csv": text.encode(), "png": _png(), "pdf": b"%PDF-1.4"}
        for kind, data in contents.items():
            store.path(name, kind).write_bytes(data)
        state[name] = {"table": "", "picture": "", "rows": len(rows), "title": chosen.title, "seconds": 1.0}
        state[name] |= {"files": {kind: hashlib.sha256(data).hexdigest() for kind, data in contents.items()}}
        state[name] |= {key: registry.text(getattr(chosen, key), rows) for key in ("claim", "caption")}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    gallery.write(store)
    return store
