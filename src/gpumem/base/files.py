"""Bytes in, bytes out: plain or gzipped, one clear error for what cannot be read, no half-written file."""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_GZIP = b"\x1f\x8b"


_UNDER_WAY: list[Callable[[], None]] = []  # what removes the files that are being written
MOVING: list[Path] = []  # folders that files are being moved into; an interrupt waits for that


def abandon() -> None:
    """Remove all that is half-written, for a process that is about to end without unwinding."""
    for remove in list(_UNDER_WAY):
        remove()


@contextmanager
def _under_way(remove: Callable[[], None]) -> Iterator[None]:
    """Something is being written; `remove` takes away what is left of it, and does no harm afterwards."""
    _UNDER_WAY.append(remove)
    try:
        yield
    finally:
        remove()
        _UNDER_WAY.remove(remove)


def _beside(folder: Path, name: str) -> Path:
    """A hidden name that is not there: what is registered before it is made cannot be left over."""
    return folder / f".{name}.{os.getpid()}-{secrets.token_hex(4)}"


def read_bytes(path: str | Path) -> bytes:
    """Return the contents of `path`, unpacked where they are gzipped (judged by content, not by name).

    Raises
    ------
    ValueError
        A missing file, a directory, no permission, a truncated or damaged gzip; the message names the path.
    """
    if not str(path):
        raise ValueError("path: the name is empty")
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    if not raw.startswith(_GZIP):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: damaged or truncated gzip ({error})") from error


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place when all went well, and vanishes otherwise.

    A name that ends in `.gz` is gzipped, reproducibly (no time stamp). A link stays, and the file that it leads to is
    replaced; the new file has the old one's mode. What is no file, as `/dev/stdout`, is written to.
    """
    with _whole(path) as file:
        if Path(path).suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file


@contextmanager
def _whole(path: str | Path) -> Iterator[BinaryIO]:
    """What `replacing` does, with the bytes as they are."""
    target = Path(os.path.realpath(path))  # a rename onto the link would leave a file in its place
    temporary = _beside(target.parent, target.name)
    what = "cannot write here"
    with _under_way(lambda: _unlink(temporary)):
        try:
            mode = _mode(Path(path))
            apart = mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)
            with temporary.open("xb") if apart else Path(path).open("wb") as file:
                if apart and mode is not None:
                    temporary.chmod(stat.S_IMODE(mode))  # before anybody can read what only the owner may
                what = "cannot write"
                yield file
            if apart:
                temporary.replace(target)
        except OSError as error:
            raise ValueError(f"{path}: {what} ({error.strerror})") from error


def _mode(path: Path) -> int | None:
    """Of what stands there, None where nothing does."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` in one step (see `replacing`)."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def staged(directory: str | Path, what: str) -> Iterator[Path]:
    """Yield a folder to write into; what is there in the end goes to `directory`: all of it, or nothing.

    Raises
    ------
    ValueError
        It cannot be written to; the message begins with `what`, the name of the argument or option.
    """
    if not str(directory):
        raise ValueError(f"{what}: the name is empty")
    folder = Path(directory)
    staging = _beside(folder, "gpumem")  # inside: a move must not leave the disk
    problem = "cannot write here"
    try:
        new = not folder.exists()
        with _under_way(lambda: _leave(staging, folder, new)):
            folder.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
            problem = "cannot write"
            yield staging
            _move(staging, folder, what)
    except OSError as error:
        raise ValueError(f"{what}: {folder}: {problem} ({error.strerror})") from error


def _unlink(temporary: Path) -> None:
    with suppress(OSError):  # not there, or not even a place where it could be
        temporary.unlink()


def _leave(staging: Path, folder: Path, new: bool) -> None:
    """Take the staging folder away, and a new folder that nothing went into."""
    shutil.rmtree(staging, ignore_errors=True)
    if new:
        with suppress(OSError):  # it is not empty, or was never made
            folder.rmdir()


def _move(staging: Path, folder: Path, what: str) -> None:
    """Move files into their places; look at all places before."""
    files = [(path, folder / path.relative_to(staging)) for path in sorted(staging.rglob("*")) if path.is_file()]
    for _, place in files:
        if place.is_dir():
            raise ValueError(f"{what}: {place} is a directory")
        if place.parent.exists() and not place.parent.is_dir():
            raise ValueError(f"{what}: {place.parent} is not a directory")
    MOVING.append(folder)
    try:
        for path, place in files:
            place.parent.mkdir(exist_ok=True)
            if place.is_symlink():  # it may lead to another disk, where no rename goes
                with path.open("rb") as file, _whole(place) as copy:
                    shutil.copyfileobj(file, copy)
            else:
                if (mode := _mode(place)) is not None:
                    path.chmod(stat.S_IMODE(mode))
                path.replace(place)
    finally:
        MOVING.remove(folder)
