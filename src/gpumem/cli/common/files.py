"""What FILE means, in every command: a trace that ships with the package, by name, or a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import gpumem
from gpumem import io
from gpumem.base import work
from gpumem.base.names import meant, nearest
from gpumem.base.units import amount, human
from gpumem.cli.common.parser import Option, option
from gpumem.cli.common.progress import tell

FILE = "trace file, or vgg16, resnet18, mlp3, which are bundled"


def source_of(file: str | None, others: Iterable[str] = ()) -> Path:
    """Return the path of the trace that FILE stands for.

    A bundled name, short or in full, always means the bundled trace, whatever else lies there (`./vgg16` is the file);
    anything else is a path. Without FILE it is the bundled VGG16.

    Parameters
    ----------
    file : str, optional
    others : iterable of str
        Names that the command knows besides, for what may have been meant.

    Raises
    ------
    ValueError
        There is no such file; the message says what is near.
    """
    name = "vgg16" if file is None else file
    short = {full: short for short, full in io.BUNDLED.items()}.get(name, name)
    if short in io.BUNDLED:
        return io.bundled_path(short)
    if not name:
        raise ValueError("FILE: the name is empty")
    try:
        if Path(name).is_dir():
            raise ValueError(f"{name}: Is a directory{_inside(name)}")
        if Path(name).exists():
            return Path(name)
    except OSError as error:  # a name that no file can have
        raise ValueError(f"{name:.60}: {error.strerror}") from error
    raise ValueError(f"{name}: No such file or directory{_instead(name, [*others, *io.BUNDLED])}")


def _inside(folder: str) -> str:
    if folder.startswith(".") and Path(folder).name in io.BUNDLED:
        return f"; the bundled trace is {Path(folder).name!r}"
    files = sorted(str(path) for path in Path(folder).glob("trace.*") if path.name.endswith(io.SUFFIXES))
    return f"; did you mean {files[0]!r}?" if files else ""


def _instead(file: str, names: Sequence[str]) -> str:
    """What may have been meant: a name, or a file in the same folder, with or without its suffix."""
    folder, name = os.path.split(file)
    try:
        beside = [entry.name for entry in os.scandir(folder or ".") if entry.is_file()]
    except OSError:
        beside = []
    longer = sorted(other for other in beside if other.startswith(f"{name}."))
    near = longer[0] if longer else nearest(name, beside if folder else [*beside, *names])
    known = "" if folder or name.endswith(io.SUFFIXES) else f"; there are {', '.join(names)}"
    return known + ("" if near is None else f"; did you mean {file[: len(file) - len(name)] + near!r}?")


def workspaces_flag(*, several: bool = False, usual: str = "none") -> Option:
    """Return the option that `with_workspaces` reads; of several rules, which `each_way` reads."""
    text = "give convolutions workspaces: fastest, none, or bytes that none exceeds (default: %(default)s)"
    text += "; each trace once by every rule" if several else ""
    metavar = "fastest|none|SIZE" + "[,...]" * several
    return option("--workspaces", default=usual, metavar=metavar, help=text)


def each_way(trace: gpumem.Trace, text: str) -> list[tuple[str, gpumem.Trace]]:
    """Return each rule of `--workspaces`, and the trace by it; several are called by trace and rule."""
    rules = [*dict.fromkeys(text.split(","))]
    variants = [(rule, with_workspaces(trace, rule)) for rule in rules]
    if len(rules) == 1:
        return variants
    return [(rule, way if rule == "none" else replace(way, name=f"{way.name}, {rule}")) for rule, way in variants]


def with_workspaces(trace: gpumem.Trace, text: str) -> gpumem.Trace:
    """Add workspaces as `--workspaces` says, and tell how many and how large."""
    rule = text if text in ("fastest", "none") else _bytes(text, trace.peak_live_bytes)
    if rule == "none":
        return trace
    from gpumem.simulator import workspaces

    larger = workspaces.add(trace, rule=rule)
    sizes = larger.buffers.size[len(trace.buffers) :]
    unread = sum(not done for done in workspaces.convolutions(trace).values())
    beside = f"; {unread} whose shapes fit no convolution have none" if unread else ""
    summary = (
        f"workspaces of {len(sizes)} ops, the largest {human(int(sizes.max()))}" if len(sizes) else "no workspaces"
    )
    tell(f"{trace.name}: {summary}{beside}")
    return larger


def _bytes(text: str, whole: int) -> int:
    if not text[:1].isdecimal():
        known = ("fastest", "none")
        raise ValueError(f"--workspaces: {text!r:.60} is neither fastest nor none nor bytes{meant(text, known)}")
    return amount(text, whole, "--workspaces", least=0)


def read_with_ops(source: Path, machine: gpumem.Machine, workspaces: str = "none") -> gpumem.Trace:
    """Read a trace to plan for; say so where it brings the durations of another machine, or is given workspaces."""
    work.tell(f"reading {source}")
    loaded = io.load(source)
    trace, timed = loaded.trace, loaded.meta.get("machine") or machine.name
    if not len(trace.ops):
        raise ValueError(f"{source}: a bare instance has no ops to swap between; see gpumem pool")
    if timed != machine.name:
        tell(f"{source} holds the durations of {timed}; {machine.name} only gives those of new copies")
    return with_workspaces(machine.timed(trace), workspaces)


def traces_of(files: Sequence[str], machine: gpumem.Machine, workspaces: str = "none") -> list[gpumem.Trace]:
    """Read traces to plan for, by each rule for workspaces; the bundled ones where none are named."""
    read = [read_with_ops(source_of(file), machine) for file in files or io.BUNDLED]
    return [way for trace in read for _, way in each_way(trace, workspaces)]
