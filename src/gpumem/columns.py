"""Columns inside, records at the edges: the buffers and the ops of a trace.

Compiled loops read the columns directly (`trace.buffers.size` is an int64 array); people read records
(`trace.buffers[3]`, `trace.ops[3]`). Units: bytes, op index, integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpumem._show import Facts, Shown, clipped, frame
from gpumem.units import human

if TYPE_CHECKING:
    from pandas import DataFrame

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Shape = tuple[int, ...]
Attributes = Mapping[str, Any]  # of an op, by name

MAX_BYTES = 2**62  # what all sizes together may come to, so that int64 sums cannot overflow
MAX_STEPS = 2**62  # what an iteration's length stays below, so that `start + n` cannot overflow
MAX_NS = 2**53  # what all durations together stay below: float64 holds them exactly, 1000 iterations fit in int64
UNKNOWN = -1  # a duration nobody measured; an `of` that does not exist

COMPUTE, COPY_OUT, COPY_IN, RECOMPUTE, SYNC = range(5)
ROLES = ("compute", "copy_out", "copy_in", "recompute", "sync")
SPACES = ("device", "host")
NAMES = ("streams", "hosts")  # columns of `Ops` that name what others count


def int_column(values: ArrayLike | Iterable[int], what: str) -> I64:
    """Return `values` as a contiguous int64 array, refusing what does not fit.

    >>> int_column([1, 2], "size")
    array([1, 2])
    """
    if not hasattr(values, "__iter__"):
        raise ValueError(f"{what}: expected a list of integers, got {values!r:.60}")
    array = np.asarray(values if isinstance(values, np.ndarray | Sequence) else list(values))  # type: ignore[arg-type]
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(f"{what}: expected a list of integers within 64 bits, got {array.dtype} {array.shape}")
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise ValueError(f"{what}: {int(array.max())} does not fit in 64 bits")
    return np.ascontiguousarray(array, np.int64)


def _column(values: ArrayLike | None, count: int, default: float, what: str = "") -> NDArray[Any]:
    """Return `values` as a column of the default's type; the default `count` times where there are none."""
    if values is None:
        return np.full(count, default)
    if type(default) is int:
        return int_column(values, what)
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in ("iuf" if type(default) is float else "iub") and array.size):
        word = "numbers" if type(default) is float else "truth values"
        raise ValueError(f"{what}: expected a list of {word}, got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array, type(default))


def _taken(values: Any, fresh: Any, rows: I64) -> Any:
    """Return rows of a column, or of none; -1 stands for the one row of `fresh`."""
    if values is None:
        return None
    if isinstance(values, Csr):
        return Csr(np.append(values.ptr, values.ptr[-1]), values.idx).take(np.where(rows < 0, len(values), rows))
    if isinstance(values, tuple):
        more = (*values, *fresh)
        return tuple(more[k] for k in rows.tolist())
    return np.append(values, fresh)[rows]


def first(bad: Bool) -> int:
    """Return the first place where `bad` holds, or -1.

    >>> first(np.array([False, True, True]))
    1
    """
    return int(np.argmax(bad)) if bad.any() else -1


def position(i: int, count: int, what: str) -> int:
    """Return which of `count` rows `i` is; negative ones count from the end, as in a list.

    >>> position(-1, 5, "op")
    4
    """
    try:
        return range(count)[index(i)]
    except IndexError:
        raise IndexError(f"{what} {i}: there are {count}") from None
    except TypeError:
        raise TypeError(f"{what} {i!r:.60}: rows have whole numbers; to_pandas() gives a table to slice") from None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Csr(Shown):
    """Rows of integers of different lengths: row `i` is `idx[ptr[i]:ptr[i + 1]]`.

    >>> rows = Csr.of([[1, 2], [], [0]])
    >>> rows[0], len(rows), rows.tolist()
    (array([1, 2]), 3, [[1, 2], [], [0]])
    """

    ptr: I64
    idx: I64

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], what: str = "rows") -> Csr:
        """Pack a list of lists."""
        if not hasattr(rows, "__len__") or isinstance(rows, str):
            raise TypeError(f"{what}: {rows!r:.60} is no list of rows; each row is a list of integers")
        for i, row in enumerate(rows):
            if not hasattr(row, "__len__") or isinstance(row, str):
                raise TypeError(f"{what}[{i}]: {row!r:.60} is no list of integers; each row is a list")
        ptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(r) for r in rows], out=ptr[1:])
        return cls(ptr, int_column([x for r in rows for x in r], what))

    @classmethod
    def grouped(cls, row: I64, idx: I64, count: int) -> Csr:
        """Put each entry of `idx` into its row, of `count` rows; within a row the order stays.

        >>> Csr.grouped(np.array([2, 0, 2]), np.array([7, 8, 9]), 3).tolist()
        [[8], [], [7, 9]]
        """
        order = np.argsort(row, kind="stable")
        return cls(np.searchsorted(row[order], np.arange(count + 1)).astype(np.int64), idx[order])

    def _facts(self) -> Facts:
        return {"rows": len(self), "entries": len(self.idx)}

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, i: int) -> I64:
        return self.idx[self.ptr[i] : self.ptr[i + 1]]

    def rows(self) -> I64:
        """Return the row number of each entry of `idx`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.ptr))

    def take(self, order: I64) -> Csr:
        """Return rows `order[0]`, `order[1]`, ...

        >>> Csr.of([[1, 2], [], [0]]).take(np.array([2, 0])).tolist()
        [[0], [1, 2]]
        """
        length = np.diff(self.ptr)[order]
        ptr = np.concatenate([[0], np.cumsum(length)])
        inside = np.arange(ptr[-1]) - np.repeat(ptr[:-1], length)
        return Csr(ptr, self.idx[np.repeat(self.ptr[order], length) + inside])

    def sums(self, values: I64 | Bool) -> I64:
        """Return for each row the sum of `values` at its entries, int64[rows].

        >>> Csr.of([[1, 2], [], [0]]).sums(np.array([10, 20, 30]))
        array([50,  0, 10])
        """
        through = np.concatenate([[0], np.cumsum(values[self.idx], dtype=np.int64)])
        total: I64 = through[self.ptr[1:]] - through[self.ptr[:-1]]
        return total

    def tolist(self) -> list[list[int]]:
        """Unpack into a list of lists."""
        flat, cut = self.idx.tolist(), self.ptr.tolist()
        return [flat[cut[i] : cut[i + 1]] for i in range(len(self))]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer, as a record for reading."""

    id: int
    size: int
    start: int
    end: int
    persistent: bool
    space: str
    kind: str
    of: int
    name: str


@dataclass(frozen=True, slots=True)
class Op:
    """One op, as a record for reading."""

    id: int
    name: str
    stream: str
    role: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    duration: int
    of: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Buffers(Shown):
    """Columns over buffers: `size` (bytes), `start`, `end` (steps), `persistent`, `host`, `kind`, `of`, ...

    `persistent`: the value survives the boundary (parameter, optimiser state). `host`: lives in pinned
    host memory. `of`: the buffer's id in the recorded file; pieces of one buffer share it. `shape`, `dtype`: of the
    tensor in it, None and "" where nobody told; None altogether in a trace that knows none.
    """

    size: I64
    start: I64
    end: I64
    persistent: Bool
    host: Bool
    kind: tuple[str, ...]
    of: I64
    name: tuple[str, ...]
    shape: tuple[Shape | None, ...] | None = None
    dtype: tuple[str, ...] | None = None

    @classmethod
    def make(
        cls,
        size: ArrayLike,
        start: ArrayLike,
        end: ArrayLike,
        *,
        persistent: ArrayLike | None = None,
        host: ArrayLike | None = None,
        kind: Sequence[str] | None = None,
        of: ArrayLike | None = None,
        name: Sequence[str] | None = None,
        shape: Sequence[Shape | None] | None = None,
        dtype: Sequence[str] | None = None,
    ) -> Buffers:
        """Build the columns; what is left out is False, `""`, the position, and no shapes."""
        sizes = int_column(size, "buffers: size")
        count = len(sizes)
        return cls(
            sizes,
            int_column(start, "buffers: start"),
            int_column(end, "buffers: end"),
            _column(persistent, count, False, "buffers: persistent"),
            _column(host, count, False, "buffers: host"),
            ("",) * count if kind is None else tuple(kind),
            np.arange(count, dtype=np.int64) if of is None else int_column(of, "buffers: of"),
            ("",) * count if name is None else tuple(name),
            None if shape is None else tuple(shape),
            None if dtype is None else tuple(dtype),
        )

    def take(self, rows: I64) -> Buffers:
        """Return rows `rows[0]`, `rows[1]`, ...; -1 stands for a new row: no bytes, no lifetime, nothing known of it.

        >>> Buffers.make([8, 9], [0, 1], [3, 2], kind=["param", "temp"]).take(np.array([1, -1, 1])).kind
        ('temp', '', 'temp')
        """
        fresh = Buffers.make([0], [0], [0], of=[UNKNOWN], shape=[None], dtype=[""])
        return Buffers(*(_taken(getattr(self, c), getattr(fresh, c), rows) for c in self.__slots__))

    def _facts(self) -> Facts:
        host = int(self.size[self.host].sum())
        device = int(self.size.sum()) - host
        persistent = int(self.persistent.sum())
        return {"buffers": len(self), "persistent": persistent, "device": human(device), "host": human(host)}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row a buffer; needs `gpumem[pandas]`.

        `bytes`; `start`, `end` (steps); `persistent`; `space` (`device` or `host`); `kind`; `of` (the buffer's id in
        the recorded file, `<NA>` where it has none); `name`.
        """
        space = [SPACES[int(host)] for host in self.host]
        rows = {"bytes": self.size, "start": self.start, "end": self.end, "persistent": self.persistent, "space": space}
        return frame(
            rows | {"kind": self.kind, "of": self.of, "name": self.name}, index="buffer", absent=UNKNOWN, among=["of"]
        )

    def __len__(self) -> int:
        return len(self.size)

    def __getitem__(self, i: int) -> Buffer:
        i = position(i, len(self), "buffer")
        return Buffer(
            i,
            int(self.size[i]),
            int(self.start[i]),
            int(self.end[i]),
            bool(self.persistent[i]),
            SPACES[int(self.host[i])],
            self.kind[i],
            int(self.of[i]),
            self.name[i],
        )

    def __iter__(self) -> Iterator[Buffer]:
        """Go through all records; columns become lists first, as single numbers of an array take ten times as long."""
        space = [SPACES[k] for k in self.host.tolist()]
        numbers = (column.tolist() for column in (self.size, self.start, self.end, self.persistent))
        return map(Buffer, range(len(self)), *numbers, space, self.kind, self.of.tolist(), self.name)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ops(Shown):
    """Columns over ops, in issue order.

    `name`; `reads`, `writes` (buffer ids, CSR; an op that changes a buffer in place lists it in both);
    `stream` (index into `streams`); `duration` (ns, -1 where nobody measured it), `flops`, `moved`
    (bytes, for a roofline); `role` (index into `ROLES`); `of` (index in the recorded file, -1 for copies);
    `rng` (draws random numbers; a rerun draws the same ones again); `statistics` (buffer ids, CSR: what the op keeps
    account of, and no other of its outputs depends on; None: by kind, see `Trace.statistics`); `host` (index into
    `hosts`: the host thread that hands the op over), `blocking` (that thread waits for the op, see `gpumem.simulate`);
    `attributes` (of the op, as a convolution's stride) and `module` (where it stands in the model), None where no op
    of the trace has any.
    """

    name: tuple[str, ...]
    reads: Csr
    writes: Csr
    stream: I64
    streams: tuple[str, ...]
    duration: I64
    flops: F64
    moved: F64
    role: I64
    of: I64
    rng: Bool
    statistics: Csr | None
    host: I64
    hosts: tuple[str, ...]
    blocking: Bool
    attributes: tuple[Attributes | None, ...] | None = None
    module: tuple[str, ...] | None = None

    @classmethod
    def make(
        cls,
        reads: Csr | Sequence[Sequence[int]],
        writes: Csr | Sequence[Sequence[int]],
        *,
        name: Sequence[str] | None = None,
        stream: ArrayLike | None = None,
        streams: Sequence[str] = ("compute",),
        duration: ArrayLike | None = None,
        flops: ArrayLike | None = None,
        moved: ArrayLike | None = None,
        role: ArrayLike | None = None,
        of: ArrayLike | None = None,
        rng: ArrayLike | None = None,
        statistics: Csr | Sequence[Sequence[int]] | None = None,
        host: ArrayLike | None = None,
        hosts: Sequence[str] = ("host",),
        blocking: ArrayLike | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        module: Sequence[str] | None = None,
    ) -> Ops:
        """Build the columns; what is left out is one compute stream of unmeasured ops, handed over by one host."""
        r = reads if isinstance(reads, Csr) else Csr.of(reads, "ops: reads")
        w = writes if isinstance(writes, Csr) else Csr.of(writes, "ops: writes")
        n = len(r)
        kept = (
            statistics if statistics is None or isinstance(statistics, Csr) else Csr.of(statistics, "ops: statistics")
        )
        return cls(
            ("",) * n if name is None else tuple(name),
            r,
            w,
            _column(stream, n, 0, "ops: stream"),
            tuple(streams),
            _column(duration, n, UNKNOWN, "ops: duration"),
            _column(flops, n, 0.0, "ops: flops"),
            _column(moved, n, 0.0, "ops: moved"),
            _column(role, n, COMPUTE, "ops: role"),
            np.arange(n, dtype=np.int64) if of is None else int_column(of, "ops: of"),
            _column(rng, n, False, "ops: rng"),
            kept,
            _column(host, n, 0, "ops: host"),
            tuple(hosts),
            _column(blocking, n, False, "ops: blocking"),
            None if attributes is None else tuple(attributes),
            None if module is None else tuple(module),
        )

    def take(self, rows: I64) -> Ops:
        """Return ops `rows[0]`, `rows[1]`, ...; -1 stands for a new one that touches nothing.

        >>> ops = Ops.make([[0], []], [[], [0]], name=["read", "write"]).take(np.array([1, -1]))
        >>> ops.name, ops.writes.tolist(), ops.of
        (('write', ''), [[0], []], array([ 1, -1]))
        """
        fresh = Ops.make([[]], [[]], of=[UNKNOWN], statistics=[[]], attributes=[None], module=[""])
        names = ("streams", "hosts")
        return Ops(
            *(
                getattr(self, c) if c in names else _taken(getattr(self, c), getattr(fresh, c), rows)
                for c in self.__slots__
            )
        )

    @property
    def copies(self) -> Bool:
        """Which ops are copies between the device and the host, bool[n].

        >>> Ops.make([[0], [1]], [[1], [0]], role=[COPY_OUT, RECOMPUTE]).copies
        array([ True, False])
        """
        mine: Bool = (self.role == COPY_OUT) | (self.role == COPY_IN)
        return mine

    def _facts(self) -> Facts:
        measured, streams = int((self.duration != UNKNOWN).sum()), clipped(", ".join(self.streams), 80)
        return {"ops": len(self), "copies": int(self.copies.sum()), "measured": measured, "on": streams}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row an op; needs `gpumem[pandas]`.

        `name`; `stream`, `role` (names); `reads`, `writes` (lists of buffers); `duration_ns` (`<NA>` where nobody
        measured it), `flops`, `moved_bytes`; `rng`; `of` (the op's index in the recorded file, `<NA>` for copies).
        """
        rows: dict[str, Any] = {
            "name": self.name,
            "stream": [self.streams[k] for k in self.stream.tolist()],
            "role": [ROLES[k] for k in self.role.tolist()],
            "reads": self.reads.tolist(),
            "writes": self.writes.tolist(),
            "duration_ns": self.duration,
            "flops": self.flops,
            "moved_bytes": self.moved,
            "rng": self.rng,
            "of": self.of,
        }
        return frame(rows, index="op", absent=UNKNOWN, among=["duration_ns", "of"])

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, i: int) -> Op:
        i = position(i, len(self), "op")
        return Op(
            i,
            self.name[i],
            self.streams[self.stream[i]],
            ROLES[self.role[i]],
            tuple(self.reads[i].tolist()),
            tuple(self.writes[i].tolist()),
            int(self.duration[i]),
            int(self.of[i]),
        )

    def __iter__(self) -> Iterator[Op]:
        """Go through all records; see `Buffers`."""
        stream, role = [self.streams[k] for k in self.stream.tolist()], [ROLES[k] for k in self.role.tolist()]
        rows = (map(tuple, csr.tolist()) for csr in (self.reads, self.writes))
        return map(Op, range(len(self)), self.name, stream, role, *rows, self.duration.tolist(), self.of.tolist())
