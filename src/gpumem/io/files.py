"""Bytes in, bytes out: plain or gzipped, one clear error for what cannot be read, no half-written file."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_GZIP = b"\x1f\x8b"


def read_bytes(path: str | Path) -> bytes:
    """Return the contents of `path`, unpacked where they are gzipped (judged by content, not by name).

    Raises
    ------
    ValueError
        A missing file, a directory, no permission, a truncated or damaged gzip; the message names the path.
    """
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

    A name that ends in `.gz` is gzipped, reproducibly (no time stamp).
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise ValueError(f"{path}: cannot write here ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as file:
            if target.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ValueError(f"{path}: cannot write ({error.strerror})") from error
        raise


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
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".gpumem.", dir=folder))  # inside: a move must not leave the disk
    except OSError as error:
        raise ValueError(f"{what}: {folder}: cannot write here ({error.strerror})") from error
    try:
        yield staging
        _move(staging, folder, what)
    except OSError as error:
        raise ValueError(f"{what}: {folder}: cannot write ({error.strerror})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if new and not any(folder.iterdir()):
            folder.rmdir()


def _move(staging: Path, folder: Path, what: str) -> None:
    """Move files into their places; look at all places before."""
    files = [(path, folder / path.relative_to(staging)) for path in sorted(staging.rglob("*")) if path.is_file()]
    for _, place in files:
        if place.is_dir():
            raise ValueError(f"{what}: {place} is a directory")
        if place.parent.exists() and not place.parent.is_dir():
            raise ValueError(f"{what}: {place.parent} is not a directory")
    for path, place in files:
        place.parent.mkdir(exist_ok=True)
        path.replace(place)
