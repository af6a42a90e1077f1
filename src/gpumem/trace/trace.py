"""One iteration of a training job: which memory it holds when, and what each op touches.

An iteration repeats, so a lifetime is an arc of the circle of `n` steps: half-open `[start, end)`,
`0 <= start < n`, `start < end <= start + n`::

    step   0     start        n      end                     a buffer is held during step i iff
           |-------[==========|=======)------|               (i - start) % n < end - start
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gpumem.base.arguments import strict_fields
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.trace.buffers import Buffers
from gpumem.trace.columns import I64, MAX_BYTES, MAX_NS, MAX_STEPS, UNKNOWN, Bool, first, int_column
from gpumem.trace.csr import Csr
from gpumem.trace.kinds import statistics_by_kind
from gpumem.trace.ops import NAMES, ROLES, Ops

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Accesses(Shown):
    """Who touches a buffer: row `b` of `op` lists its ops in issue order; `reads`, `writes` run along."""

    op: Csr
    reads: Bool
    writes: Bool


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace(Shown):
    """One iteration of `n` steps: its buffers and, step by step, its ops.

    A trace without ops is a bare storage allocation instance of `n` steps.

    Parameters
    ----------
    buffers : Buffers
    ops : Ops
    n : int, optional
        Steps of the iteration; the number of ops unless there are none.
    name : str
        For files and people.

    Raises
    ------
    ValueError
        A column of the wrong length, a size below 0 or a total of `2**62` bytes and more, a lifetime that is
        no arc, a persistent buffer that does not cross the boundary, an unknown id, durations of 2**53 ns and
        more, an op that touches a buffer before it is allocated or after it is freed, a copy between the
        wrong spaces. The message names the place and the value.

    Notes
    -----
    Construction validates, in O(buffers + accesses). Treat the columns as frozen.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 2, 3], [0, 1, 3], [2, 3, 5])
    >>> trace.live_bytes(), trace.peak
    (array([4, 6, 2, 3, 3]), (1, 6))
    """

    buffers: Buffers
    ops: Ops
    n: int = 0
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        _check_columns(self.buffers, "buffers")
        _check_columns(self.ops, "ops")
        if len(self.ops):
            if self.n not in (0, len(self.ops)):
                raise ValueError(f"trace {self.name!r}: {self.n} steps, but there are {len(self.ops)} ops")
            object.__setattr__(self, "n", len(self.ops))
        if self.n < 1:
            raise ValueError(f"trace {self.name!r}: empty, an iteration has at least one step (n = {self.n})")
        if self.n >= MAX_STEPS:
            raise ValueError(f"trace {self.name!r}: {self.n} steps are 2**62 or more")
        _check_buffers(self.buffers, self.n)
        _check_ops(self.ops, len(self.buffers))
        _check_lifetimes(self)
        _check_copies(self)

    def _facts(self) -> Facts:
        (op, peak), kept = self.peak, int(self.buffers.size[self.buffers.persistent].sum())
        return {
            "": self.name,
            "ops" if len(self.ops) else "steps": self.n,
            "buffers": len(self.buffers),
            "peak live bytes": f"{human(peak)} at {'op' if len(self.ops) else 'step'} {op}",
            "persistent": human(kept),
        }

    def to_pandas(self) -> tuple[DataFrame, DataFrame]:
        """Return `buffers.to_pandas()` and `ops.to_pandas()`; needs `gpumem[pandas]`."""
        return self.buffers.to_pandas(), self.ops.to_pandas()

    @classmethod
    def from_lifetimes(
        cls, size: ArrayLike, start: ArrayLike, end: ArrayLike, *, n: int | None = None, name: str = ""
    ) -> Trace:
        """Make a bare instance: buffer `i` takes `size[i]` bytes during steps `[start[i], end[i])`.

        `n` (the circle's length) defaults to the last `end`, so that nothing wraps.
        """
        ends = int_column(end, "buffers: end")
        steps = n if n is not None else int(ends.max(initial=1))
        return cls(Buffers.make(size, start, ends), Ops.make([], []), steps, name=name)

    def steps(self, *, host: bool = False) -> tuple[I64, I64]:
        """Return the live bytes as a step function: `held[k]` bytes from `time[k]` to `time[k + 1]` (or `n`).

        Costs O(B log B) whatever `n`, so instances with nanoseconds for steps are fine.
        """
        buffers = self.buffers
        side = buffers.host == host
        size, start, end = buffers.size[side], buffers.start[side], buffers.end[side]
        wraps = end > self.n  # the tail of such an arc comes at the start of the circle
        at = np.concatenate([start, np.minimum(end, self.n), np.zeros(int(wraps.sum()), np.int64), end[wraps] - self.n])
        change = np.concatenate([size, -size, size[wraps], -size[wraps]])
        time, place = np.unique(np.concatenate([[0], at]), return_inverse=True)
        delta = np.zeros(len(time), np.int64)
        np.add.at(delta, place[1:], change)
        inside = time < self.n
        return time[inside], np.cumsum(delta)[inside]

    def live_bytes(self, *, host: bool = False) -> I64:
        """Return the bytes held during each of the `n` steps, on the device or on the host."""
        time, held = self.steps(host=host)
        return np.repeat(held, np.diff(np.append(time, self.n)))

    @property
    def peak(self) -> tuple[int, int]:
        """The first step with the most live bytes on the device, and how many."""
        time, held = self.steps()
        highest = int(np.argmax(held))
        return int(time[highest]), int(held[highest])

    @property
    def peak_live_bytes(self) -> int:
        """The most live bytes on the device: no placement can be lower."""
        return self.peak[1]

    @property
    def eternal(self) -> Bool:
        """Which buffers live for ever, bool[B]: persistent full circles, the same bytes in every iteration.

        >>> from gpumem.trace import Buffers, Ops
        >>> table = Buffers.make([1, 1, 1], [0, 0, 1], [2, 2, 3], persistent=[True, False, False])
        >>> trace = Trace(table, Ops.make([], []), 2)
        >>> trace.eternal, trace.crossing
        (array([ True, False, False]), array([ True, False,  True]))
        """
        buffers = self.buffers
        return np.asarray(buffers.persistent & (buffers.end - buffers.start == self.n), np.bool_)

    @property
    def crossing(self) -> Bool:
        """Which buffers are alive across the boundary, bool[B]: those that live for ever, and arcs that wrap."""
        return (self.buffers.end > self.n) | self.eternal

    @property
    def statistics(self) -> Csr:
        """The buffers that each op keeps statistics in: `ops.statistics`, or by kind where that is None.

        By kind they are what an op reads and writes of kind `buffer` while it writes something of another kind, its
        workspace aside: the running mean and variance of a batch norm. No other output depends on them, so a
        recomputation leaves them alone.

        >>> from gpumem.trace import Buffers, Ops
        >>> from gpumem.trace import STATISTICS
        >>> ops = Ops.make([[0, 1], [0]], [[1, 2], [2]])
        >>> table = Buffers.make([8] * 3, [0] * 3, [2] * 3, kind=["param", STATISTICS, "activation"])
        >>> Trace(table, ops).statistics.tolist()
        [[1], []]
        """
        given = self.ops.statistics
        return statistics_by_kind(self.buffers.kind, self.ops) if given is None else given

    def last_touch(self) -> I64:
        """Return the steps from each buffer's start to the last op that touches it, int64[B]; -1 where none does.

        >>> from gpumem.trace import Buffers, Ops
        >>> Trace(Buffers.make([8, 8], [1, 0], [4, 3]), Ops.make([[0], [], []], [[], [0], []])).last_touch()
        array([ 2, -1])
        """
        touched = self.accesses().op
        buffer, last = touched.rows(), np.full(len(self.buffers), -1, np.int64)
        np.maximum.at(last, buffer, (touched.idx - self.buffers.start[buffer]) % self.n)
        return last

    def host_side(self) -> Trace:
        """Return the host's buffers as a bare instance, so that any pool planner can place the pinned slab.

        >>> from gpumem.trace import Buffers, Ops
        >>> trace = Trace(Buffers.make([8, 4], [0, 0], [2, 1], host=[False, True]), Ops.make([[0], []], [[], []]))
        >>> trace.host_side().peak_live_bytes
        4
        """
        return Trace(replace(self.buffers, host=~self.buffers.host), Ops.make([], []), self.n, name=self.name)

    def with_blocking(self, which: ArrayLike = True) -> Trace:
        """Return the trace with other ops blocking: all, none, or those of `which`, bool[n]; see
        `gpumem.simulator.simulate`.

        With all it is what a framework does that launches one op after another and waits for each.

        >>> from gpumem.io import bundled
        >>> trace = bundled("mlp3")
        >>> bool(trace.with_blocking().ops.blocking.all()), bool(trace.with_blocking(False).ops.blocking.any())
        (True, False)
        """
        blocking = np.asarray(which)
        if blocking.dtype != np.bool_ or blocking.shape not in ((), (len(self.ops),)):
            given = f"{blocking.dtype} {blocking.shape}"
            raise ValueError(f"blocking: expected a truth value, or one for each of {len(self.ops)} ops, got {given}")
        return replace(self, ops=replace(self.ops, blocking=np.full(len(self.ops), blocking)))

    def accesses(self) -> Accesses:
        """Return who touches each buffer: reads and writes of an op merged, in issue order."""
        n, reads, writes = max(self.n, 1), self.ops.reads, self.ops.writes
        touch = np.sort(
            np.concatenate([(reads.idx * n + reads.rows()) * 2, (writes.idx * n + writes.rows()) * 2 + 1])
        )  # reads first
        new = np.diff(touch >> 1, prepend=-1) != 0
        begins, ends = touch[new], touch[np.append(new, True)[1:]]
        keys = begins >> 1
        ptr = np.searchsorted(keys, np.arange(len(self.buffers) + 1, dtype=np.int64) * n)
        return Accesses(Csr(ptr.astype(np.int64), keys % n), begins & 1 == 0, ends & 1 == 1)


def _check_columns(table: Buffers | Ops, what: str) -> None:
    for column in table.__slots__:
        values = getattr(table, column)
        if column not in NAMES and values is not None and len(values) != len(table):
            raise ValueError(f"{what}: {len(table)} rows, but column {column!r} has {len(values)}")


def _check_buffers(buffers: Buffers, n: int) -> None:
    size, start, end = buffers.size, buffers.start, buffers.end
    if (bad := first(size < 0)) >= 0:
        raise ValueError(f"buffer {bad}: size {size[bad]} is negative")
    if float(size.sum(dtype=np.float64)) >= MAX_BYTES:
        raise ValueError(f"buffers: sizes add up to 2**62 bytes or more (the largest is {size.max()})")
    if (bad := first((start < 0) | (start >= n))) >= 0:
        raise ValueError(f"buffer {bad}: start {start[bad]} is not in [0, {n})")
    if (bad := first((end <= start) | (end > start + n))) >= 0:
        raise ValueError(f"buffer {bad}: lifetime [{start[bad]}, {end[bad]}) must last 1 to {n} steps")
    if (bad := first(buffers.persistent & (end <= n) & (end - start < n))) >= 0:
        raise ValueError(f"buffer {bad}: persistent, but [{start[bad]}, {end[bad]}) does not cross the boundary at {n}")


def _check_ops(ops: Ops, count: int) -> None:
    kept = [] if ops.statistics is None else [("statistics", ops.statistics)]
    for what, rows in (("reads", ops.reads), ("writes", ops.writes), *kept):
        if rows.ptr[0] != 0 or rows.ptr[-1] != len(rows.idx) or (np.diff(rows.ptr) < 0).any():
            raise ValueError(f"ops: {what} are no CSR: ptr does not ascend from 0 to {len(rows.idx)}")
        if (entry := first((rows.idx < 0) | (rows.idx >= count))) >= 0:
            raise ValueError(f"op {rows.rows()[entry]}: {what} buffer {rows.idx[entry]}, but there are {count} buffers")
    numbered = (("stream", ops.stream, ops.streams), ("host", ops.host, ops.hosts), ("role", ops.role, ROLES))
    for what, number, names in numbered:
        if (op := first((number < 0) | (number >= len(names)))) >= 0:
            raise ValueError(f"op {op}: {what} {number[op]}, but there are {len(names)} {what}s")
    if (op := first((ops.duration < UNKNOWN) | (ops.duration >= MAX_NS))) >= 0:
        raise ValueError(f"op {op}: duration {ops.duration[op]} ns is not in [0, 2**53)")
    if float(ops.duration.sum(dtype=np.float64)) >= MAX_NS:
        raise ValueError(f"ops: durations add up to 2**53 ns or more (the longest is {ops.duration.max()})")
    _check_statistics(ops)
    for what, column in (("flops", ops.flops), ("bytes moved", ops.moved)):
        if (op := first(~(np.isfinite(column) & (column >= 0)))) >= 0:
            raise ValueError(f"op {op}: {what} {column[op]} is not a finite number >= 0")


def _check_statistics(ops: Ops) -> None:
    if ops.statistics is None:
        return
    count = 1 + max(int(rows.idx.max(initial=0)) for rows in (ops.reads, ops.writes, ops.statistics))
    kept, read, written = (rows.rows() * count + rows.idx for rows in (ops.statistics, ops.reads, ops.writes))
    if len(stray := kept[~(np.isin(kept, read) & np.isin(kept, written))]):
        op, buffer = divmod(int(stray.min()), count)
        raise ValueError(f"op {op}: statistics in buffer {buffer}, which it does not both read and write")


def _check_lifetimes(trace: Trace) -> None:
    buffers = trace.buffers
    for verb, rows in (("reads", trace.ops.reads), ("writes", trace.ops.writes)):
        op, buffer = rows.rows(), rows.idx
        if (entry := first((op - buffers.start[buffer]) % trace.n >= (buffers.end - buffers.start)[buffer])) >= 0:
            at, culprit = int(op[entry]), int(buffer[entry])
            when = (
                "before it is allocated"
                if at < buffers.start[culprit] and buffers.end[culprit] <= trace.n
                else "after it is freed"
            )
            lifetime = f"[{buffers.start[culprit]}, {buffers.end[culprit]})"
            raise ValueError(f"op {at}: {verb} buffer {culprit} {when}: it lives during {lifetime}")


def _check_copies(trace: Trace) -> None:
    buffers, ops = trace.buffers, trace.ops
    for op in np.flatnonzero(ops.copies).tolist():
        source, target, role = ops.reads[op], ops.writes[op], ROLES[ops.role[op]]
        if len(source) != 1 or len(target) != 1 or buffers.size[source[0]] != buffers.size[target[0]]:
            raise ValueError(f"op {op}: a {role} reads one buffer and writes another of the same size")
        if (bool(buffers.host[source[0]]), bool(buffers.host[target[0]])) != (role == "copy_in", role == "copy_out"):
            raise ValueError(
                f"op {op}: a {role} goes from {'host to device' if role == 'copy_in' else 'device to host'}"
            )
