"""Why a pool needs more than the load: the smallest that serves 1, 2 and 8 rounds of two jobs, flat and wrapped.

Where all jobs end together, each round finds an empty pool, and the first tells all. Where rounds overlap, a round
begins among the holes that the one before left; how fast that grows is what counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.waterwave.batches import Row, Sizing, at_batch, parts_of
from gpumem import best_fit
from gpumem.base.arguments import strict
from gpumem.jobs.waterwave import Partition, co_schedule, in_pool, pipeline
from gpumem.pool import MultiStream, replay, stacked
from gpumem.pool.allocators.protocol import stepwise
from gpumem.trace import Trace
from gpumem.trace.batch import recorded_batch

ROUNDS = (1, 2, 8)
GROUPS = 16  # of a job's peak live bytes, as in benchmarks/speed/turns.py
STEP = 64  # pools are found to a part of so many of the load


class Enough(Exception):
    """So many rounds have been served."""


class Rounds(MultiStream):
    """Serves so many requests; `hasty`: it syncs at each, so that all free chunks are one list."""

    def __init__(self, capacity: int, requests: int, hasty: bool) -> None:
        super().__init__(capacity=capacity, allow_growth=False)
        self.requests, self.hasty = requests, hasty

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        if self.statistics.blocks.total == self.requests:
            raise Enough
        if self.hasty:
            self.sync_and_coalesce()
        return super().allocate(size, stream=stream)


def least(trace: Trace, rounds: int, *, hasty: bool) -> float:
    """The smallest pool that serves so many rounds, next to the load."""
    requests, head = stepwise(trace)
    count = head + rounds * sum(request >= 0 for request in requests[head:])
    low, high = STEP - 1, 2 * STEP
    while high - low > 1:
        middle = (low + high) // 2
        try:
            replay(trace, Rounds(trace.peak_live_bytes * middle // STEP, count, hasty), iterations=rounds + 1)
        except MemoryError:
            low = middle
        except Enough:
            high = middle
    return high / STEP


@strict
def pool_rounds(sizing: Sizing, trace: Trace, of_memory: float = 0.8) -> list[Row]:
    """Measure the pools of two jobs at about so much of the memory for one: two rows, of flat rounds and wrapped ones.

    Returns
    -------
    list of dict
        `apart` and `one list`: for 1, 2 and 8 rounds, served with lists by stream and with one; `offline`; `ends`. All
        are next to the load of the round.
    """
    sizing.progress(f"{trace.name}: rounds")
    (job,) = at_batch(trace, 1, max(int(of_memory * recorded_batch(trace) * sizing.limit / trace.peak_live_bytes), 1))
    parts = parts_of([job, job], sizing.machine, job.peak_live_bytes // GROUPS)
    tall = [in_pool(part, stacked(part.trace)) for part in parts]
    return [_row(sizing, job, parts, tall, wrap=wrap) for wrap in (False, True)]


def _row(sizing: Sizing, job: Trace, parts: Sequence[Partition], tall: Sequence[Partition], *, wrap: bool) -> Row:
    two = co_schedule(pipeline(parts, overlap=0, wrap=wrap), sizing.machine).trace
    ends = int(pipeline(tall, overlap=0, wrap=wrap).bound().max())
    return {
        "trace": job.name,
        "machine": sizing.machine.name,
        "rounds": "wrapped" if wrap else "flat",
        "load": two.peak_live_bytes / job.peak_live_bytes,
        "apart": [least(two, count, hasty=False) for count in ROUNDS],
        "one list": [least(two, count, hasty=True) for count in ROUNDS],
        "offline": best_fit(two).ratio(two),
        "ends": ends / two.peak_live_bytes,
    }
