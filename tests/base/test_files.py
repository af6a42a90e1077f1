"""Writing a file: all of it stands there or the old one does, and what cannot be written is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpumem import io
from gpumem.io import replacing
from tests.files import leftovers


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="half way"), replacing(path) as file:
        file.write(b"new" * 10_000)
        raise RuntimeError("half way")
    assert path.read_bytes() == b"old"
    with pytest.raises(ValueError, match=rf"{name}: cannot write \(No space left on device\)"), replacing(path) as file:
        file.write(b"new")
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_until_the_write_is_done_the_old_file_stands(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert leftovers(tmp_path) == []


def test_what_is_written_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        io.write_text(tmp_path / "t.txt", "ü")
        assert os.umask(0o027) == 0o027  # as it was
    finally:
        os.umask(old)
    assert (tmp_path / "t.txt").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "t.txt").read_bytes() == "ü".encode()


@pytest.mark.parametrize("target", ["missing/t.json", "file/t.json", "folder"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=rf"{target}: cannot write.*\((No such file|Not a directory|Is a directory)"):
        io.write_text(tmp_path / target, "x")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]
