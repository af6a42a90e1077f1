"""Reading a file of any known format, which is judged by content, and the traces that ship with the package."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.files import read_bytes
from gpumem.base.names import choice, one_of
from gpumem.io import minimalloc, recorded, tracefile
from gpumem.io.schema import File, decode
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

BUNDLED = {"vgg16": "vgg16_cifar_b100", "resnet18": "resnet18_cifar_b100", "mlp3": "mlp3_b128_sgd"}

_OTHERS = {  # keys by which JSON that is no trace is known
    "decisions": "a plan; its trace is trace.json.gz beside it",
    "traceEvents": "a Chrome trace, which has no buffers",
    "device_traces": "a snapshot of PyTorch's allocator, which has no reads and writes",
    "capacity": "a machine; give it with --machine",
}
_BINARY = {b"\x80": ", but a pickle", b"PK": ", but a zip archive"}


@dataclass(frozen=True, slots=True, repr=False)
class Loaded(Shown):
    """What a file held: the trace, its placement if it has one, and the file's `meta`."""

    trace: Trace
    placement: Placement | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@strict
def load(path: str | Path, *, iteration: int | None = None) -> Loaded:
    """Read a trace file of any known format with all it says.

    Parameters
    ----------
    path : path
        JSON or CSV, gzipped or not.
    iteration : int, optional
        Which iteration of a recording; the last steady one by default.

    Raises
    ------
    ValueError
        Whatever is wrong with the file; one line that names the file, the place and the value.
    """
    data = read_bytes(path)
    try:
        return _parse(data, Path(path), iteration)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


@strict
def read(path: str | Path, *, iteration: int | None = None) -> Trace:
    """Read the trace in a file of any known format; see `load`.

    Examples
    --------
    >>> read(bundled_path("mlp3")).n
    40
    """
    return load(path, iteration=iteration).trace


@strict
def bundled_path(name: str) -> Path:
    """Return where a trace that ships with the package lies; `name` is one of `BUNDLED`."""
    file = choice(name, BUNDLED, "bundled trace")
    return Path(str(resources.files("gpumem"))) / "data" / f"{file}.json.gz"


@strict
def bundled(name: str = "vgg16") -> Trace:
    """Read a real trace that ships with the package: `vgg16`, `resnet18` (CIFAR, batch 100) or `mlp3`."""
    return read(bundled_path(name))


def _parse(data: bytes, path: Path, iteration: int | None) -> Loaded:
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise ValueError("the file is empty")
    if data.lstrip()[:1] not in b"{[":
        try:
            text = data.decode()
        except UnicodeDecodeError:
            known = next((what for magic, what in _BINARY.items() if data.startswith(magic)), "")
            raise ValueError(f"neither JSON nor CSV text{known}") from None
        trace, placement = minimalloc.parse(text, name=path.name.split(".")[0])
        return Loaded(trace, placement)
    keys = decode(data, dict[str, msgspec.Raw], "file")
    if "meta" not in keys and (other := next((what for key, what in _OTHERS.items() if key in keys), None)):
        raise ValueError(f"file: no trace (an object with the keys meta, buffers, ops), but {other}")
    file = decode(data, File, "file")
    meta = decode(file.meta, dict[str, Any], "meta")
    if meta.get("format") == tracefile.FORMAT:
        for key in keys:
            one_of("file: key", key, File.__struct_fields__)
        trace, placement = tracefile.parse(file.meta, file.buffers, file.ops)
    elif meta.get("format", 1) == 1:
        trace, placement = recorded.parse(file.meta, file.buffers, file.ops, iteration=iteration), None
    else:
        raise ValueError(f"meta.format: {meta['format']!r:.60} is unknown; there are 1 and {tracefile.FORMAT!r}")
    if not len(trace.buffers):
        raise ValueError("buffers: empty, nothing to plan")
    return Loaded(trace, placement, meta)
