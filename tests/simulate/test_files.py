"""A file is written whole or not at all."""

import os
from pathlib import Path

import pytest

from simulate.files import write_atomically, write_json


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "new folder" / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_what_json_cannot_hold_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(tmp_path / "file.json", {"a": object()})
    assert not list(tmp_path.iterdir())
