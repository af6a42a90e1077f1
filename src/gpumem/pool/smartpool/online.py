"""SmartPool as it runs: records an iteration, plans it, and then looks every request up.

::

    requests   | recorded, served by the fallback | looked up ...          | looked up ...        time right
               | iteration 1  |    iteration 2    |       |  iteration 3   |  iteration 4
                                                  ^       ^
                                  it repeats: plan        the plan's region is taken where fewest bytes are live

    addresses  | fallback's blocks |  region of the plan  | fallback's blocks |
                                   ^ one block of the fallback: nobody else has a byte of it
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import cast

from gpumem import check
from gpumem.base.arguments import strict
from gpumem.pool.allocators._blocks import block_at, checked
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import Pool, stepwise
from gpumem.pool.smartpool._cursor import NONE, Cursor, How
from gpumem.pool.smartpool._iteration import Observer, RequestTable, recorded
from gpumem.pool.smartpool._region import Held, Region
from gpumem.pool.smartpool._statistics import SmartPoolStatistics
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Trace
from gpumem.trace.placement import Placement


class SmartPool:
    """Allocates by a plan of the iteration, which it detects itself; what is not as planned, the fallback serves.

    Parameters
    ----------
    fallback : Pool, optional
        Serves whatever the plan does not, and the region of the plan; `Native()` where left out. It belongs to
        the pool, which sets its `synchronize`.
    planner : callable
        `Trace -> Placement`; called once a period is found, within the next request.
    alignment : int
        Bytes that every offset of the planner is a multiple of.
    min_length : int
        Fewest requests of an iteration; see `Detector`.
    horizon : int
        Requests recorded at most before the search for an iteration starts afresh.

    Attributes
    ----------
    alignment : int
        Bytes that every offset is a multiple of: what `alignment` and the fallback's have in common.
    statistics : SmartPoolStatistics
    trace : Trace or None
        The iteration that was planned, a step a request unless it was given; None before there is one.
    placement : Placement or None
        The plan.

    Raises
    ------
    ValueError
        A number below 1; from the next request on, a placement whose offsets are no multiples of `alignment`.
    CheckError
        From a request: the planner's placement is none. Whatever a planner raises leaves the request undone and the
        pool as it was, without that plan; the same request can be repeated.

    Notes
    -----
    *Time.* O(1) a request as planned. A deviation costs O(log D), where D live blocks are overdue, and looks at
    a bounded number of requests; to recover the position after `LOST` of them costs O(live blocks). While it
    records, a request costs O(log horizon). Planning happens once, within a request:
    what the planner takes, and O(n log n) to check its placement of n buffers, `horizon` of them at most.

    *Memory.* 100 bytes a request of an iteration, and 200 more once the position was lost; while it records, 70 bytes
    a request, up to `horizon` of them.

    *Safety* does not depend on the position: every block in the region that the table does not hold at
    the position is *overdue*, and the planned bytes are allocated only if no overdue block has any of them and the
    placement, checked once, has no two buffers that the table holds at once on one byte.

    *Recording.* Before the first plan always; afterwards from a deviation on, until two iterations in a row go as
    planned. A period found meanwhile replaces the plan when it has lasted as long as an iteration of the
    plan. So a single odd iteration replaces nothing.

    *Departures.* The paper looks requests up in a map, O(log n); here the position is an index. It is silent on
    deviations. It records reads and writes as well; mallocs and frees are enough to place.

    References
    ----------
    Zhang et al. 2019, sections III-C, V and VI-A.

    Examples
    --------
    >>> pool = SmartPool(min_length=4)
    >>> weight = pool.allocate(1000)
    >>> for _ in range(4):
    ...     x = pool.allocate(3000); y = pool.allocate(2000); pool.free(x); z = pool.allocate(3000)
    ...     pool.free(y); pool.free(z)
    ...     print(x - (pool.base or 0), y - (pool.base or 0), z - (pool.base or 0))
    2097152 4194304 2097152
    2097152 4194304 2097152
    0 3072 0
    0 3072 0
    >>> pool.placement.height, pool.statistics.hits, pool.statistics.misses
    (5072, 6, 7)
    """

    @strict
    def __init__(
        self,
        fallback: Pool | None = None,
        *,
        planner: Callable[[Trace], Placement] = best_fit,
        alignment: int = 256,
        min_length: int = 32,
        horizon: int = 2**18,
    ) -> None:
        self._fallback: Pool = Native() if fallback is None else fallback
        self.alignment = gcd(checked(alignment, "alignment"), self._fallback.alignment)
        self.statistics = SmartPoolStatistics(reserved=self._fallback.statistics.reserved)
        self.synchronize: Callable[[], None] = self._fallback.synchronize
        self._fallback.synchronize = self._wait
        self._planner = planner
        self._min_length, self._horizon = checked(min_length, "min_length"), checked(horizon, "horizon")
        self._live: dict[int, Held] = {}
        self._cursor: Cursor | None = None
        self.trace: Trace | None = None
        self.placement: Placement | None = None
        self._enter: int | None = None  # the position where the region is taken; None: at once
        self._pause = self._passes = 0  # how many passes of that position to wait between two attempts; and left
        self._retired: set[Region] = set()
        self._observer: Observer | None = self._new_observer(0)

    @classmethod
    @strict
    def of(
        cls,
        trace: Trace,
        placed: Placement,
        fallback: Pool | None = None,
        *,
        planner: Callable[[Trace], Placement] = best_fit,
    ) -> SmartPool:
        """Return a pool that starts with a plan, so that the first request is served by it already.

        What a trace asks for, and in which order, is what `gpumem.pool.allocators.protocol.replay` asks for; `placed`
        says where its buffers lie, and has the alignment. `ValueError` where no buffer comes and goes and for a
        placement of another trace, `CheckError` for a placement that is none.

        Examples
        --------
        >>> trace = Trace.from_lifetimes([600, 200, 600], [0, 1, 2], [2, 3, 4])
        >>> pool = SmartPool.of(trace, best_fit(trace))
        >>> a = pool.allocate(600); b = pool.allocate(200); pool.free(a); c = pool.allocate(600)
        >>> a, b, c
        (0, 768, 0)
        """
        placed.check_fits(trace)
        pool = cls(fallback, planner=planner, alignment=placed.alignment)
        requests, head = stepwise(trace)
        if len(requests) == head:
            raise ValueError(f"trace {trace.name!r}: no buffer comes and goes, so there is nothing to look up")
        pool._begin(trace, placed, requests, head)
        pool._enter, pool._observer = None, None
        return pool

    @property
    def capacity(self) -> int | None:
        """The fallback's, None where it has none."""
        return cast(int | None, getattr(self._fallback, "capacity", None))

    @property
    def base(self) -> int | None:
        """The first byte of the plan's region: offset 0 of the placement; None while there is no region."""
        return None if self._cursor is None or self._cursor.region is None else self._cursor.region.base

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`: the planned one, or one of the fallback's."""
        cursor, counts = self._cursor, self.statistics
        asked = size if type(size) is int and size > 0 else checked(size, "size")
        if cursor is None or self._observer is not None or not (held := cursor.malloc_as_planned(asked, stream)):
            return self._allocate(asked, stream)
        counts.hits += 1
        counts.requests += 1
        counts.add_block(asked, asked)
        self._live[held.low] = held
        return held.low

    def _allocate(self, asked: int, stream: int) -> int:
        """Serve a request that is not known to be as planned."""
        self._replan(stream)
        buffer, held = NONE, None
        how: How = ""
        if self._cursor is not None:
            buffer, how = self._cursor.seek(asked)
            self._take_region(self._cursor, stream)
            if how != "size":
                held = self._cursor.claim(buffer, stream)
        if held is not None:
            self.statistics.hits += 1
        else:
            held = self._from_fallback(asked, stream)
        self.statistics.add_block(held.size, asked)
        self._live[held.low] = held
        if self._cursor is not None:
            if held.region is None and buffer != NONE and how != "size" and self._cursor.region is not None:
                self._cursor.taken(asked)
            self._cursor.made(held, asked, buffer, how)
        self._observe(held.low, asked)
        return held.low

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take back what `allocate` returned, last used on `stream`."""
        live = self._live
        held = live[offset] if type(offset) is int and offset in live else block_at(live, offset)
        cursor = self._cursor
        if self._observer is not None:
            self._replan(stream)
            cursor = self._cursor
        if (region := held.region) is None:
            self._fallback.free(held.low, stream=stream)
        else:
            if self._retired and region in self._retired and len(region.live) == 1:
                self._give_back(region, stream)  # first, since a wait may fail
            region.release(held, stream)
        del self._live[held.low]
        self.statistics.drop_block(held.size, held.requested)
        if cursor is not None and self._observer is None and cursor.free_as_planned(held):
            self.statistics.requests += 1
            return
        if cursor is not None:
            cursor.freed(held, held.requested)
        self._observe(held.low, 0)

    def trim(self) -> bool:
        """Give the plan's region back where no block is in it, to take it again later; return whether it went."""
        cursor = self._cursor
        if cursor is None or cursor.region is None or cursor.region.live:
            return False
        self._give_back(cursor.region)
        cursor.region = None
        self._wait_longer(cursor)
        return True

    def _from_fallback(self, size: int, stream: int) -> Held:
        """Let the fallback serve; if it cannot, an idle region must go."""
        counts = self._fallback.statistics.allocated
        before = counts.current
        try:
            low = self._fallback.allocate(size, stream=stream)
        except MemoryError:
            if not self.trim():
                raise
            before = counts.current
            low = self._fallback.allocate(size, stream=stream)
        self.statistics.misses += 1
        return Held(low, counts.current - before, size, None)

    def _observe(self, address: int, size: int) -> None:
        """Record a malloc, or a free (size 0), if there is anything to find out; forget it all if not."""
        self.statistics.requests += 1
        observer, cursor = self._observer, self._cursor
        if observer is None and cursor is not None and not cursor.streak:
            observer = self._observer = self._new_observer(cursor.table.length)
        if observer is None:
            return
        if size:
            observer.malloc(address, size)
        else:
            observer.free(address)
        if cursor is not None:
            as_planned = len(observer.word) if observer.word is not None else 2 * cursor.table.length
            if cursor.streak >= as_planned:
                self._observer = None

    def _new_observer(self, lasting: int) -> Observer:
        return Observer(min_length=self._min_length, lasting=lasting, horizon=self._horizon)

    def _replan(self, stream: int) -> None:
        """Plan the iteration that was found, if one was, and begin it."""
        if self._observer is None or self._observer.word is None:
            return
        word, made = self._observer.word, self._observer.live()
        # Whatever the planner raises: record afresh, or it would be raised for ever.
        self._observer = self._new_observer(len(word))
        trace, requests = recorded(word)
        self._begin(trace, self._planner(trace), requests, 0)
        self._observer = None
        assert self._cursor is not None
        for address, position in made.items():
            self._cursor.adopt(self._live[address], requests[position])

    def _begin(self, trace: Trace, placed: Placement, requests: list[int], head: int) -> None:
        """Follow a plan from its first request on."""
        check.placement(trace, placed)
        for buffer, offset in enumerate(placed.offset.tolist()):
            if not trace.buffers.host[buffer] and offset % self.alignment:
                raise ValueError(f"buffer {buffer}: the planned offset {offset} is not a multiple of {self.alignment}")
        if self._cursor is not None:
            if (old := self._cursor.region) is not None:
                if old.live:
                    self._retired.add(old)
                else:
                    self._give_back(old)
            self._cursor.leave()
        self.trace, self.placement = trace, placed
        self._cursor = Cursor(RequestTable.make(trace, placed, requests, head), self.statistics)
        self._enter, self._pause, self._passes = self._cursor.table.quietest(), 0, 0
        self.statistics.plans += 1

    def _take_region(self, cursor: Cursor, stream: int) -> None:
        """Take the plan's bytes from the fallback, where the plan holds least: other blocks hold least then, too."""
        if cursor.region is not None or self._enter not in (None, cursor.position):
            return
        if self._passes:
            self._passes -= 1
            return
        try:
            base = self._fallback.allocate(cursor.table.height, stream=stream)
        except MemoryError:
            self._wait_longer(cursor)
            return
        cursor.region = Region(base, cursor.table.height, stream, self._wait)

    def _wait_longer(self, cursor: Cursor) -> None:
        """Try again to take the region, but ever less often."""
        self._pause = self._passes = 2 * self._pause + 1
        self._enter = cursor.table.quietest()

    def _give_back(self, region: Region, stream: int | None = None) -> None:
        self._fallback.free(region.base, stream=region.last_stream(stream))
        self._retired.discard(region)

    def _wait(self) -> None:
        """Wait for all streams."""
        self.synchronize()
        for region in (*self._retired, *([self._cursor.region] if self._cursor and self._cursor.region else [])):
            region.synchronised()
