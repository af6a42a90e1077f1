"""What the time of an op is predicted from, and tables of measured ones."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpumem.base.arguments import finite, strict
from gpumem.base.display import Shown
from gpumem.base.files import read_bytes, write_text
from gpumem.io.schema import decode
from gpumem.kernels import reference
from gpumem.simulator.machine import Machine
from gpumem.trace import I64, MAX_NS, UNKNOWN, Ops, Trace
from gpumem.trace.signature import SIGNATURE

if TYPE_CHECKING:
    from gpumem.execute.models.graph import Model

FORMAT = "gpumem.execute.latency/2"
FORMATS = ("gpumem.execute.latency/1", FORMAT)  # the first has no signatures, nets and machine


@dataclass(frozen=True, slots=True)
class Sample:
    """An op as a predictor sees it; one made from a trace knows bytes and flops, and its signature if the trace does.

    Parameters
    ----------
    name : str
        The operator's type.
    reads, writes : tuple of int
        Bytes of each input and output, in the operator's order.
    flops, moved : float
        Work, and bytes moved, for a roofline.
    shapes : tuple of tuple of int, optional
        Dimensions of each input; None where nobody knows them.
    parameters : tuple of float
        The operator's numbers (stride, padding, ...), in an order that is the same for all of its type.
    signature : str
        What it was called with, as captured traces tell; see `gpumem.trace.signature`.

    Raises
    ------
    ValueError
        A negative size, a dimension below 1, a number that is not finite.

    Examples
    --------
    >>> Sample("relu", (24,), (24,), moved=48, shapes=((2, 3),)).name
    'relu'
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: float = 0
    moved: float = 0
    shapes: tuple[tuple[int, ...], ...] | None = None
    parameters: tuple[float, ...] = ()
    signature: str = ""

    def __post_init__(self) -> None:
        for size in (*self.reads, *self.writes):
            if size < 0:
                raise ValueError(f"sample {self.name!r}: an operand of {size} bytes")
        finite(f"sample {self.name!r}", flops=self.flops, moved=self.moved)
        for shape in self.shapes or ():
            if min(shape, default=1) < 1:
                raise ValueError(f"sample {self.name!r}: shape {shape} has a dimension below 1")
        for value in self.parameters:
            if not math.isfinite(value):
                raise ValueError(f"sample {self.name!r}: parameter {value} is not finite")

    @property
    def work(self) -> tuple[object, ...]:
        """What a trace knows of it. Samples that agree here are one shape when a table is split."""
        return self.name, self.reads, self.writes, self.flops, self.moved, self.signature


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long an op took, in ns, while other jobs' kernels ran during the share `utilisation` of the time.

    `net`: in a step of which net, `count`: how often it runs in one of its iterations, where that is known.

    >>> Measurement(Sample("relu", (24,), (24,)), utilisation=0.5, ns=0)
    Traceback (most recent call last):
    ValueError: sample 'relu': 0 ns are not in [1, 2**53)
    """

    sample: Sample
    utilisation: float
    ns: int
    net: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"sample {self.sample.name!r}: count {self.count} is below 1")
        if not 0 <= self.utilisation <= 1:
            raise ValueError(f"sample {self.sample.name!r}: utilisation {self.utilisation} is not in [0, 1]")
        if not 1 <= self.ns < MAX_NS:
            raise ValueError(f"sample {self.sample.name!r}: {self.ns} ns are not in [1, 2**53)")


class _Head(msgspec.Struct):
    format: str
    source: str = ""
    machine: Machine | None = None
    iterations: dict[str, int] = {}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LatencyTable(Shown):
    """Measurements.

    Parameters
    ----------
    rows : tuple of Measurement
    source : str
        What made them: machine, versions, command.
    machine : Machine, optional
        Where they were made: its rates were measured along with them.
    iterations : dict of str to int
        How long an iteration of each net took, in ns, with nobody watching.
    """

    rows: tuple[Measurement, ...]
    source: str = ""
    machine: Machine | None = None
    iterations: Mapping[str, int] = field(default_factory=dict)


@strict
def write_table(path: str | Path, table: LatencyTable) -> None:
    """Write a table as JSON lines, in one step: a head, then a measurement a line (gzipped if `path` ends in `.gz`).

    >>> import tempfile
    >>> row = Measurement(Sample("relu", (24,), (24,), moved=48), utilisation=0, ns=5000)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_table(f"{folder}/table.jsonl", LatencyTable((row,), "by hand"))
    ...     table = read_table(f"{folder}/table.jsonl")
    >>> table.rows == (row,), table.source
    (True, 'by hand')
    """
    head = {"format": FORMAT, **_stated(table)}
    del head["rows"]
    if table.machine is not None:
        head["machine"] = _stated(table.machine)
    rows = [_stated(row) | {"sample": _stated(row.sample)} for row in table.rows]
    write_text(path, "".join(f"{msgspec.json.encode(line).decode()}\n" for line in (head, *rows)))


def _stated(of: LatencyTable | Machine | Measurement | Sample) -> dict[str, object]:
    """The fields of a record that say more than their default does."""
    usual = {
        column.name: column.default if column.default_factory is MISSING else column.default_factory()
        for column in fields(of)
    }
    return {name: value for name, default in usual.items() if (value := getattr(of, name)) != default}


@strict
def read_table(path: str | Path) -> LatencyTable:
    """Read a table that `write_table` wrote, gzipped or not; empty lines are skipped.

    Raises
    ------
    ValueError
        What cannot be read: the message names the file, the line, the field and the value.
    """
    lines = [
        (f"{path}, line {number}", line) for number, line in enumerate(read_bytes(path).splitlines(), 1) if line.strip()
    ]
    if not lines:
        raise ValueError(f"{path}: empty, expected a line with the format {FORMAT!r}")
    where, first = lines[0]
    head = decode(first, _Head, where)
    if head.format not in FORMATS:
        raise ValueError(f"{where}: format {head.format!r} is none of {', '.join(map(repr, FORMATS))}")
    rows = tuple(decode(line, Measurement, where) for where, line in lines[1:])
    return LatencyTable(rows, head.source, head.machine, head.iterations)


@strict
def samples(trace: Trace) -> list[Sample]:
    """Return each op of a trace as a sample.

    >>> import gpumem
    >>> samples(gpumem.bundled("mlp3"))[2]  # doctest: +NORMALIZE_WHITESPACE
    Sample(name='addmm.default', reads=(16384, 401408, 12845056), writes=(2097152,), flops=822083584.0,
           moved=15360000.0, shapes=None, parameters=(), signature='')
    """
    return samples_of(trace.ops, trace.buffers.size)


def samples_of(ops: Ops, sizes: I64) -> list[Sample]:
    """Return each of some ops as a sample, given the bytes of all buffers."""
    size = sizes.tolist()
    signatures = [str((attributes or {}).get(SIGNATURE, "")) for attributes in ops.attributes or [None] * len(ops)]
    operands = (ops.reads.tolist(), ops.writes.tolist())
    return [
        Sample(
            name, tuple(size[op] for op in reads), tuple(size[op] for op in writes), flops, moved, signature=signature
        )
        for name, reads, writes, flops, moved, signature in zip(
            ops.name, *operands, ops.flops.tolist(), ops.moved.tolist(), signatures
        )
    ]


@strict
def table_rows(trace: Trace, net: str = "") -> list[Measurement]:
    """Return the measured ops of a trace as rows of a table: those alike are one, with the median of their times.

    >>> from dataclasses import replace
    >>> import gpumem
    >>> trace = gpumem.bundled("mlp3")
    >>> timed = replace(trace, ops=replace(trace.ops, duration=np.full(trace.n, 500)))
    >>> sum(row.count for row in table_rows(timed, "mlp3")) == trace.n, table_rows(trace)
    (True, [])
    """
    took: dict[Sample, list[int]] = {}
    for op, ns in zip(samples(trace), trace.ops.duration.tolist()):
        if ns != UNKNOWN:
            took.setdefault(op, []).append(ns)
    return [Measurement(op, 0, max(round(float(np.median(ns))), 1), net, len(ns)) for op, ns in took.items()]


def model_samples(model: Model) -> list[Sample]:
    """Return each op of a model as a sample with the shapes of its inputs and the numbers among its options.

    >>> from gpumem.execute.models import mlp
    >>> op = model_samples(mlp(batch=4, features=8, hidden=[6]))[0]
    >>> op.name, op.shapes, op.parameters  # the parameters: transpose neither a nor b
    ('matmul', ((4, 8), (8, 6)), (0.0, 0.0))
    """
    rows = []
    for step, op in zip(model.steps, samples(model.trace)):
        inputs = tuple(tensor.shape for tensor in dict.fromkeys(step.arrays) if tensor.root in step.reads)
        options = inspect.signature(getattr(reference, op.name)).parameters  # where each has its place
        given = {
            name: parameter.default
            for name, parameter in options.items()
            if parameter.default not in (parameter.empty, None)
        } | dict(step.options)
        numbers = tuple(float(given[name]) for name in options if name in given)
        rows.append(replace(op, shapes=inputs, parameters=numbers))
    return rows


@strict
def split(rows: Sequence[Measurement], *, seed: int, held: float = 0.25) -> tuple[list[Measurement], list[Measurement]]:
    """Split measurements into those to learn from and those to judge by, so that no shape is on both sides.

    Parameters
    ----------
    rows : sequence of Measurement
    seed : int
    held : float
        The share of each type's shapes to judge by, rounded; all measurements of a shape go together.

    Returns
    -------
    learn, judge : list of Measurement
        In the order of `rows`.

    Examples
    --------
    >>> rows = [Measurement(Sample("relu", (n,), (n,)), u, n) for n in (1, 2, 3, 4) for u in (0, 1)]
    >>> learn, judge = split(rows, seed=0)
    >>> len(learn), len({row.sample for row in judge})
    (6, 1)
    """
    if not 0 <= held <= 1:
        raise ValueError(f"held: {held} is not in [0, 1]")
    rng, out = np.random.default_rng(seed), set()
    for _, group in sorted(by_type(rows).items()):
        shapes = list(dict.fromkeys(row.sample.work for row in group))
        out |= {shapes[index] for index in rng.permutation(len(shapes))[: round(held * len(shapes))]}
    return [row for row in rows if row.sample.work not in out], [row for row in rows if row.sample.work in out]


def by_type(rows: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """Group measurements by their operator's type."""
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row.sample.name, []).append(row)
    return groups
