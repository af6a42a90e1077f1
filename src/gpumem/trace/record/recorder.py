"""Record a program's allocations and ops."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, NamedTuple

import numpy as np

from gpumem.base.arguments import finite, strict
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.trace.buffers import Shape
from gpumem.trace.columns import MAX_BYTES, UNKNOWN, dimensions, numbered, optional_column
from gpumem.trace.kinds import recorded_statistics
from gpumem.trace.ops import THE_HOST, Ops
from gpumem.trace.record.recording import BEFORE, NEVER, Recording
from gpumem.trace.trace import Trace


@dataclass(slots=True)
class _Block:
    size: int
    alloc: int
    free: int
    kind: str
    shape: Shape | None
    dtype: str


class Exec(NamedTuple):
    """What `exec` was told, by the columns of `Ops`."""

    name: str
    reads: list[int]
    writes: list[int]
    stream: str
    duration: int
    flops: float
    moved: float
    rng: bool
    statistics: list[int] | None
    attributes: dict[str, Any] | None
    module: str
    host: str
    blocking: bool


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

    _blocks: list[_Block] = field(default_factory=list, init=False)
    _ops: list[Exec] = field(default_factory=list, init=False)
    _events: list[tuple[str, int, int]] = field(default_factory=list, init=False)
    _begins: list[int] = field(default_factory=list, init=False)  # the first event of each op

    def _facts(self) -> Facts:
        live = sum(block.size for block in self._blocks if block.free == NEVER)
        return {"ops": len(self._ops), "blocks": len(self._blocks), "live": human(live)}

    @strict
    def malloc(self, size: int, *, kind: str = "", shape: Sequence[int] | None = None, dtype: str = "") -> int:
        """Record an allocation of `size` bytes before the next op; return the block's id.

        `shape` and `dtype` are those of a tensor in it; they need not come to `size`, as a storage may be larger.
        """
        if not 0 <= index(size) < MAX_BYTES:
            raise ValueError(f"malloc: size {size} is not in [0, 2**62)")
        dims = None if shape is None else dimensions(shape, "malloc: shape")
        self._blocks.append(_Block(index(size), len(self._ops), free=NEVER, kind=kind, shape=dims, dtype=dtype))
        self._events.append(("malloc", len(self._blocks) - 1, size))
        return len(self._blocks) - 1

    @strict
    def free(self, block: int) -> None:
        """Record that `block` is released after the last op so far."""
        block_ = self._live(block, "free")
        block_.free = max(len(self._ops) - 1, block_.alloc)
        self._events.append(("free", block, block_.size))

    @strict
    def exec(  # noqa: PLR0913  a column each, by keyword
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
        attributes: Mapping[str, Any] | None = None,
        module: str = "",
        host: str = THE_HOST,
        blocking: bool = False,
    ) -> None:
        """Record an op; a block that it changes in place belongs to both `reads` and `writes`.

        `duration` in nanoseconds where measured; else `flops` and `moved` bytes let a machine estimate it. `rng` where
        it draws random numbers; `statistics` as in `Trace.statistics`, by kind where left out. `attributes` of the op,
        as a convolution's stride; the `module` of the model that it stands in. `host` is the thread that launches
        it, `blocking` where that waits for it; see `gpumem.simulator.simulate`.
        """
        where = f"op {len(self._ops)} ({op})"
        if duration < 0 and duration != UNKNOWN:
            raise ValueError(f"{where}: duration {duration} ns is negative")
        finite(where, flops=flops, moved=moved)
        for block in (*reads, *writes):
            self._live(block, where)
        if statistics and (stray := set(statistics) - (set(reads) & set(writes))):
            raise ValueError(f"{where}: statistics in block {min(stray)}, not both read and written")
        kept = None if statistics is None else list(statistics)
        given = None if attributes is None else dict(attributes)
        work = (stream, duration, flops, moved, rng)
        self.append(Exec(op, list(reads), list(writes), *work, kept, given, module, host, blocking))

    def append(self, op: Exec) -> None:
        """Record an op that is right, as `exec` sees to."""
        self._begins.append(len(self._events))
        self._events += [("read", block, self._blocks[block].size) for block in op.reads]
        self._events += [("write", block, self._blocks[block].size) for block in op.writes]
        self._ops.append(op)

    def _live(self, block: int, where: str) -> _Block:
        if not (hasattr(block, "__index__") and 0 <= block < len(self._blocks)):
            raise ValueError(f"{where}: block {block!r:.60} was never allocated")
        if (block_ := self._blocks[block]).free != NEVER:
            raise ValueError(f"{where}: block {block} was already freed after op {block_.free}")
        return block_

    @property
    def events(self) -> Iterator[tuple[str, int, int]]:
        """The stream of `(kind, block, size)` that `gpumem.trace.record.period` looks for iterations in."""
        return iter(self._events)

    def events_since(self, start: int) -> list[tuple[str, int, int]]:
        """Return the events from number `start` on, at no cost for those before."""
        return self._events[start:]

    def begins_since(self, start: int) -> list[int]:
        """Return for each op from number `start` on the event with which it begins."""
        return self._begins[start:]

    @strict
    def ops_between(self, start: int, end: int) -> tuple[int, int]:
        """Return the ops `[lo, hi)` that begin within events `[start, end)`, say of a detected iteration.

        >>> from gpumem.trace.record import BlockEvent, detect
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
        given: dict[str, Any] = {column: [getattr(op, column) for op in self._ops] for column in Exec._fields}
        given |= numbered(given["stream"], "stream", "compute") | numbered(given["host"], "host", THE_HOST)
        given |= {
            "attributes": optional_column(given["attributes"], None),
            "module": optional_column(given["module"], ""),
        }
        statistics, kind = given.pop("statistics"), tuple(block.kind for block in self._blocks)
        ops = Ops.make(**given)
        free = np.array([block.free for block in self._blocks], np.int64)
        alloc = np.array([block.alloc for block in self._blocks], np.int64)
        alloc[(alloc == 0) & (free == NEVER)] = BEFORE
        return Recording(
            np.array([block.size for block in self._blocks], np.int64),
            alloc,
            free,
            kind=kind,
            name=("",) * len(kind),
            ops=replace(ops, statistics=recorded_statistics(statistics, kind, ops)),
            shape=optional_column((block.shape for block in self._blocks), None),
            dtype=optional_column((block.dtype for block in self._blocks), ""),
        )

    @strict
    def trace(self, lo: int = 0, hi: int | None = None, *, name: str = "") -> Trace:
        """Return ops `[lo, hi)`, by default all, as one iteration; see `Recording.iteration`."""
        return self.recording().iteration(lo, len(self._ops) if hi is None else hi, name=name)
