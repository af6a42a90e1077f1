"""Record a program's allocations and ops, and cut one iteration out of the recording."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import numpy as np

from gpumem._show import Facts, Shown
from gpumem._strict import strict, strict_fields
from gpumem.columns import I64, MAX_BYTES, UNKNOWN, Bool, Buffers, Csr, Ops, Shape, first
from gpumem.kinds import told_statistics
from gpumem.trace import Trace
from gpumem.units import human

NEVER = 2**62  # `free` of a block that outlives the recording
BEFORE = -1  # `alloc` of a block that was there before


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recording(Shown):
    """What was recorded: several iterations of ops, and blocks that each live from op `alloc` to op `free`.

    Parameters
    ----------
    size : int64[B]
        Bytes.
    alloc, free : int64[B]
        First and last op during which the block occupies memory, both inclusive; `BEFORE` (-1) and
        `NEVER` (2**62) where the recording does not say.
    kind, name : tuple of str
    ops : Ops
        All recorded ops; reads and writes count in blocks.
    shape, dtype : tuple, optional
        As columns of `Buffers`.
    """

    size: I64
    alloc: I64
    free: I64
    kind: tuple[str, ...]
    name: tuple[str, ...]
    ops: Ops
    shape: tuple[Shape | None, ...] | None = None
    dtype: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for verb, rows in (("reads", self.ops.reads), ("writes", self.ops.writes)):
            op, block = rows.rows(), rows.idx
            if (k := first((block < 0) | (block >= len(self.size)))) >= 0:
                raise ValueError(f"op {op[k]}: {verb} buffer {block[k]}, but there are {len(self.size)} buffers")
            begin, end = self.alloc[block], self.free[block]
            if (k := first((op < begin) | (op > end))) >= 0:
                when = "before it is allocated" if op[k] < begin[k] else "after it is freed"
                lives = f"[{begin[k]}, {end[k]}]"
                raise ValueError(f"op {op[k]}: {verb} buffer {block[k]} {when}: it lives during ops {lives}")

    def _facts(self) -> Facts:
        return {"ops": len(self.ops), "blocks": len(self.size), "bytes of all": human(int(self.size.sum()))}

    @strict
    def iteration(self, lo: int, hi: int, *, name: str = "") -> Trace:
        """Cut ops `[lo, hi)` out as one iteration that repeats.

        Blocks alive throughout are persistent. A block made in the previous iteration and freed in this
        one is taken to be the block made at the same relative op with the same size in this one: the two
        become one arc across the boundary. Where it was freed right before this one, and the recording ends
        before the free of its successor, that one ends with the iteration.

        Raises
        ------
        ValueError
            No such ops, or the cut is not a steady iteration: a block freed in it was not made in the
            iteration before (or its successor is freed at another op of the next one), a block made in it
            is never freed, or lives longer than an iteration.

        Notes
        -----
        O(B log B + accesses). `of` of buffers and ops counts in the recording.
        """
        if not 0 <= lo < hi <= len(self.ops):
            raise ValueError(f"iteration [{lo}, {hi}): the recording has ops [0, {len(self.ops)})")
        n = hi - lo
        before, inside = self.alloc < lo, (self.alloc >= lo) & (self.alloc < hi)
        through = before & (self.free >= hi)
        start = np.where(through, 0, self.alloc - lo)
        end = np.where(through, n, np.minimum(self.free, NEVER - 1) + 1 - lo)
        twin = self._twins(lo, n, before & (self.free >= lo - 1) & ~through, inside & (self.free >= hi - 1))
        for old, new in twin.items():
            end[new] = n + self.free[old] + 1 - lo
        keep = np.flatnonzero(through | inside)
        if (k := first(end[keep] - start[keep] > n)) >= 0:
            j = keep[k]
            fate = "is never freed" if end[j] == NEVER - lo else f"lives {end[j] - start[j]} ops"
            raise ValueError(
                f"buffer {j}: made at op {self.alloc[j]}, {fate}; in a steady iteration of {n} ops "
                f"([{lo}, {hi})) it would live {n} at most"
            )
        buffers = Buffers.make(
            self.size[keep],
            start[keep],
            end[keep],
            persistent=through[keep],
            kind=[self.kind[j] for j in keep],
            of=keep,
            name=[self.name[j] for j in keep],
            shape=None if self.shape is None else [self.shape[j] for j in keep],
            dtype=None if self.dtype is None else [self.dtype[j] for j in keep],
        )
        return Trace(buffers, self._ops(lo, hi, keep, twin), name=name)

    def _twins(self, lo: int, n: int, old: Bool, new: Bool) -> dict[int, int]:
        """Match each block that ends in this iteration, or right before it, to its successor."""
        made: dict[tuple[int, int], list[int]] = {}
        for j in np.flatnonzero(new).tolist():
            made.setdefault((int(self.alloc[j]), int(self.size[j])), []).append(j)
        twin = {}
        for j in np.flatnonzero(old).tolist():
            at = int(self.alloc[j])
            partners = made.get((at + n, int(self.size[j])), []) if at != BEFORE else []
            fits = [k for end in (self.free[j] + n, NEVER) for k in partners if self.free[k] == end]
            if not fits and self.free[j] < lo:
                continue  # gone before this iteration
            if not fits:
                origin = "made before the recording" if at == BEFORE else f"made at op {at}"
                raise ValueError(
                    f"buffer {j} ({self.size[j]} bytes), {origin}: freed at op {self.free[j]} in the iteration "
                    f"[{lo}, {lo + n}), which makes no buffer like it: not a steady iteration"
                )
            twin[j] = fits[0]
            partners.remove(fits[0])
        return twin

    def _ops(self, lo: int, hi: int, keep: I64, twin: dict[int, int]) -> Ops:
        new_id = np.full(len(self.size), -1, np.int64)
        new_id[keep] = np.arange(len(keep))
        for old, new in twin.items():
            new_id[old] = new_id[new]
        ops = self.ops

        def cut(rows: Csr) -> Csr:
            mine = rows.take(np.arange(lo, hi))
            return Csr(mine.ptr, new_id[mine.idx])

        statistics = None if ops.statistics is None else cut(ops.statistics)
        mine = ops.take(np.arange(lo, hi))
        return replace(mine, reads=cut(ops.reads), writes=cut(ops.writes), statistics=statistics, of=np.arange(lo, hi))


@dataclass(slots=True, repr=False)
class Recorder(Shown):
    """SmartPool's Device: call `malloc`, `free` and `exec` as the program does, get a trace.

    Examples
    --------
    >>> device = Recorder()
    >>> w = device.malloc(400, kind="param")
    >>> x = device.malloc(100)
    >>> device.exec("forward", reads=[w], writes=[x])
    >>> device.exec("update", reads=[w, x], writes=[w])
    >>> device.free(x)
    >>> trace = device.trace()
    >>> [(b.size, b.start, b.end, b.persistent) for b in trace.buffers]
    [(400, 0, 2, True), (100, 0, 2, False)]

    References
    ----------
    Zhang et al. 2019, section V (the Device abstraction).
    """

    _size: list[int] = field(default_factory=list, init=False)
    _alloc: list[int] = field(default_factory=list, init=False)
    _free: list[int] = field(default_factory=list, init=False)
    _kind: list[str] = field(default_factory=list, init=False)
    _ops: list[tuple[Any, ...]] = field(default_factory=list, init=False)  # what `exec` was told
    _events: list[tuple[str, int, int]] = field(default_factory=list, init=False)
    _begins: list[int] = field(default_factory=list, init=False)  # the first event of each op

    def _facts(self) -> Facts:
        live = sum(size for size, free in zip(self._size, self._free) if free == NEVER)
        return {"ops": len(self._ops), "blocks": len(self._size), "live": human(live)}

    @strict
    def malloc(self, size: int, *, kind: str = "") -> int:
        """Record an allocation of `size` bytes before the next op; return the block's id."""
        if not 0 <= index(size) < MAX_BYTES:
            raise ValueError(f"malloc: size {size} is not in [0, 2**62)")
        self._size.append(index(size))
        self._alloc.append(len(self._ops))
        self._free.append(NEVER)
        self._kind.append(kind)
        self._events.append(("malloc", len(self._size) - 1, size))
        return len(self._size) - 1

    @strict
    def free(self, block: int) -> None:
        """Record that `block` is released after the last op so far."""
        self._live(block, "free")
        self._free[block] = max(len(self._ops) - 1, self._alloc[block])
        self._events.append(("free", block, self._size[block]))

    @strict
    def exec(
        self,
        op: str,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        *,
        stream: str = "compute",
        duration: int = UNKNOWN,
        flops: float = 0,
        moved: float = 0,
        rng: bool = False,
        statistics: Sequence[int] | None = None,
    ) -> None:
        """Record an op; a block that it changes in place belongs to both `reads` and `writes`.

        `duration` in nanoseconds where measured; else `flops` and `moved` bytes let a machine estimate it. `rng` where
        it draws random numbers; `statistics` as in `Trace.statistics`, by kind where left out.
        """
        if duration < 0 and duration != UNKNOWN:
            raise ValueError(f"op {len(self._ops)} ({op}): duration {duration} ns is negative")
        for what, amount in (("flops", flops), ("moved", moved)):
            if not 0 <= amount < math.inf:
                raise ValueError(f"op {len(self._ops)} ({op}): {what} {amount} is not finite and >= 0")
        for block in (*reads, *writes):
            self._live(block, f"op {len(self._ops)} ({op})")
        if stray := set(statistics or ()) - (set(reads) & set(writes)):
            raise ValueError(f"op {len(self._ops)} ({op}): statistics in block {min(stray)}, not both read and written")
        kept = None if statistics is None else list(statistics)
        self._ops.append((op, list(reads), list(writes), stream, duration, flops, moved, rng, kept))
        self._begins.append(len(self._events))
        self._events += [("read", b, self._size[b]) for b in reads]
        self._events += [("write", b, self._size[b]) for b in writes]

    def _live(self, block: int, where: str) -> None:
        if not (hasattr(block, "__index__") and 0 <= block < len(self._size)):
            raise ValueError(f"{where}: block {block!r:.60} was never allocated")
        if self._free[block] != NEVER:
            raise ValueError(f"{where}: block {block} was already freed after op {self._free[block]}")

    @property
    def events(self) -> Iterator[tuple[str, int, int]]:
        """The stream of `(kind, block, size)` that `gpumem.period` looks for iterations in."""
        return iter(self._events)

    @strict
    def ops_between(self, start: int, end: int) -> tuple[int, int]:
        """Return the ops `[lo, hi)` that begin within events `[start, end)`, say of a detected iteration.

        >>> from gpumem.period import BlockEvent, detect
        >>> device = Recorder()
        >>> w = device.malloc(400)
        >>> for _ in range(4):
        ...     x = device.malloc(100)
        ...     device.exec("forward", reads=[w], writes=[x])
        ...     device.exec("update", reads=[w, x], writes=[w])
        ...     device.free(x)
        >>> found = detect(BlockEvent(*e) for e in device.events)
        >>> lo, hi = device.ops_between(found.start + found.length, found.end)
        >>> device.trace(lo, hi).n
        2
        """
        return bisect_left(self._begins, start), bisect_left(self._begins, end)

    def recording(self) -> Recording:
        """Return what was recorded. Blocks made before the first op and never freed were always there."""
        columns: Iterable[Any] = ([op[k] for op in self._ops] for k in range(9))
        name, reads, writes, stream, duration, flops, moved, rng, told = columns
        number = {name: k for k, name in enumerate(dict.fromkeys(stream))}
        free = np.array(self._free, np.int64)
        alloc = np.array(self._alloc, np.int64)
        alloc[(alloc == 0) & (free == NEVER)] = BEFORE
        queues = {"stream": [number[s] for s in stream], "streams": list(number) or ["compute"]}
        work = {"duration": duration, "flops": flops, "moved": moved, "rng": list(rng)}
        ops = Ops.make(reads, writes, name=name, **work, **queues)
        ops = replace(ops, statistics=told_statistics(told, self._kind, ops))
        return Recording(np.array(self._size, np.int64), alloc, free, tuple(self._kind), ("",) * len(free), ops)

    @strict
    def trace(self, lo: int = 0, hi: int | None = None, *, name: str = "") -> Trace:
        """Return ops `[lo, hi)`, by default all, as one iteration; see `Recording.iteration`."""
        return self.recording().iteration(lo, len(self._ops) if hi is None else hi, name=name)
