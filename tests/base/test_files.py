"""Writing a file: all of it stands there or the old one does, and what cannot be written is named."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpumem import io
from gpumem.base.files import read_bytes
from gpumem.io import replacing, staged
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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    real, link, loop = tmp_path / "there" / "real", tmp_path / name, tmp_path / "loop"
    link.symlink_to("there/real")  # to nothing yet
    for text in ("first", "second"):
        io.write_text(link, text)
        assert link.is_symlink() and read_bytes(real).decode() == text
    assert leftovers(tmp_path) == leftovers(tmp_path / "there") == []
    loop.symlink_to("loop")
    with pytest.raises(ValueError, match=r"loop: cannot write here \(Too many levels of symbolic links\)"):
        io.write_text(loop, "x")


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path, seen = tmp_path / "t.txt", []
    io.write_text(path, "old")
    for rights in (0o600, 0o444, 0o755):
        path.chmod(rights)
        with replacing(path) as file:
            seen.append({mode(tmp_path / name) for name in leftovers(tmp_path)})  # of the half-written one as well
            file.write(b"new")
        assert mode(path) == rights and path.read_bytes() == b"new"
    assert seen == [{0o600}, {0o444}, {0o755}]


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        io.write_text(tmp_path / "pipe", "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_folder_of_files_keeps_links_and_modes(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere.json.gz"
    folder.mkdir()
    (folder / "plan.json").write_text("old")
    (folder / "plan.json").chmod(0o600)
    elsewhere.write_text("old")
    elsewhere.chmod(0o640)
    (folder / "trace.json.gz").symlink_to("../elsewhere.json.gz")
    with staged(folder, "--out") as staging:
        for name in ("plan.json", "trace.json.gz"):
            (staging / name).write_text("new")
    assert (folder / "trace.json.gz").is_symlink() and elsewhere.read_text() == "new"
    assert (folder / "plan.json").read_text() == "new"
    assert (mode(folder / "plan.json"), mode(elsewhere)) == (0o600, 0o640)
    assert sorted(p.name for p in folder.iterdir()) == ["plan.json", "trace.json.gz"]


@pytest.mark.parametrize("target", ["missing/t.json", "file/t.json", "folder"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=rf"{target}: cannot write.*\((No such file|Not a directory|Is a directory)"):
        io.write_text(tmp_path / target, "x")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]
