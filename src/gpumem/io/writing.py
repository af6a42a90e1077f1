"""Writing a trace: the file's name says in which format, the trace or a machine how long its ops take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpumem.base.arguments import strict
from gpumem.base.names import meant
from gpumem.io import minimalloc, tracefile
from gpumem.simulator.machine import Machine
from gpumem.trace import I64, MAX_NS, UNKNOWN, Trace, first, int_column
from gpumem.trace.placement import Placement

SUFFIXES = (".json", ".json.gz", ".csv", ".csv.gz")


@strict
def write(
    path: str | Path,
    trace: Trace,
    placement: Placement | None = None,
    *,
    machine: Machine | str | None = None,
    duration: Sequence[int] | I64 | None = None,
    source: str = "",
    capacity: int | None = None,
    makespan_ns: int | None = None,
) -> None:
    """Write a trace, and where its buffers lie, in the format that the name asks for.

    Parameters
    ----------
    path : path
        `.json` and `.json.gz` are `gpumem.trace/1`, one buffer or op a line; `.csv` and `.csv.gz` are minimalloc's,
        which has no ops, so that the options below are no use to it.
    placement : Placement, optional
    machine : Machine or str, optional
        The machine that durations are for, or the name of a preset; its name is written into the file. Needed where
        the trace has ops that nobody measured.
    duration : int64[n], optional
        Nanoseconds of each op, in place of those that were measured and of the machine's.
    source : str
        The input file's name.
    capacity : int, optional
        Bytes the pool must fit; the placement's height where left out.
    makespan_ns : int, optional
        One iteration by the address-aware simulation.

    Raises
    ------
    ValueError
        A suffix that is unknown; an op without a duration; too few or too many durations or offsets; a place that
        cannot be written to; for a CSV, a buffer that lives across the boundary.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from gpumem.io import bundled, load
    >>> path = Path(mkdtemp()) / "mlp3.json.gz"
    >>> write(path, bundled("mlp3"), machine="v100")
    >>> load(path).meta["machine"]
    'v100'
    """
    machine = Machine.named(machine) if isinstance(machine, str) else machine
    if _suffix(path).startswith(".csv"):
        given = {"machine": machine, "duration": duration, "capacity": capacity, "makespan_ns": makespan_ns}
        for what in (what for what, value in given.items() if value is not None):
            raise ValueError(f"{path}: {what}: a CSV has no ops and keeps none of it; .json would do")
        return minimalloc.write(path, trace, placement)
    if placement is not None:
        placement.check_fits(trace)
    ns = _durations(path, trace, machine, duration)
    name = machine.name if machine else ""
    meta = {"source": source, "machine": name, "capacity": capacity, "makespan_ns": makespan_ns}
    return tracefile.write(path, trace, ns, placement, **meta)  # type: ignore[arg-type]


def _suffix(path: str | Path) -> str:
    name = Path(path).name.lower()
    suffix_ = next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)
    if suffix_ is None or name == suffix_:
        last = "".join(Path(name).suffixes[-2:] if name.endswith(".gz") else Path(name).suffixes[-1:])
        raise ValueError(f"{path}: suffix {last!r} is unknown; there are {', '.join(SUFFIXES)}{meant(last, SUFFIXES)}")
    return suffix_


def _durations(path: str | Path, trace: Trace, machine: Machine | None, duration: Sequence[int] | I64 | None) -> I64:
    if duration is not None:
        ns = int_column(duration, "duration")
        if len(ns) != len(trace.ops):
            raise ValueError(f"{path}: {len(trace.ops)} ops, but {len(ns)} durations")
        if (op := first((ns < 0) | (ns >= MAX_NS))) >= 0:
            raise ValueError(f"{path}: duration[{op}]: {ns[op]} ns is not in [0, 2**53)")
        return ns
    if machine is not None and len(trace.ops):
        return machine.durations(trace)
    if (op := first(trace.ops.duration == UNKNOWN)) >= 0:
        problem = f"op {op} ({trace.ops.name[op]!r:.60}) was not measured, so it has no duration"
        raise ValueError(f"{path}: {problem}; machine='v100' would estimate it, duration= gives all of them")
    return trace.ops.duration
