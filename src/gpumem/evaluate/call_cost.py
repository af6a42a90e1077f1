"""What a call costs: the time of a malloc and its free, for several allocators side by side."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from gpumem.base.arguments import strict
from gpumem.pool.allocators.protocol import Allocator, stepwise
from gpumem.trace import Trace


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a malloc and a free together, the median of some replays.

    Parameters
    ----------
    trace, allocator : str
        Names.
    pairs : int
        Mallocs, and as many frees, of one iteration.
    ns : float
        Nanoseconds, those of the loop around the calls among them.
    """

    trace: str
    allocator: str
    pairs: int
    ns: float


@strict
def costs(
    trace: Trace,
    allocators: Mapping[str, Callable[[], Allocator]],
    *,
    replays: int = 7,
    warm: int = 2,
    clock: Callable[[], int] = time.thread_time_ns,
) -> list[Cost]:
    """Time the requests of an iteration on several allocators, in turn.

    Parameters
    ----------
    trace : Trace
        Its requests are those of `gpumem.pool.allocators.protocol.replay`, all on one stream.
    allocators : mapping of str to callable
        Each returns a fresh allocator.
    replays : int
        Timed iterations of each allocator. They take turns, so that what slows the machine down slows all.
    warm : int
        Iterations before, so that pools have grown and iterations are known.
    clock : callable
        In nanoseconds: CPU time, which other programs do not disturb; take wall time where a driver makes us wait.

    Returns
    -------
    list of Cost
        In the order of `allocators`.

    Raises
    ------
    ValueError
        A number of replays below 1; no buffer of the trace comes and goes.

    Notes
    -----
    The allocators of this package are Python, so times compare their algorithms and nothing else: `Native` calls no
    driver. `benchmarks/gpu/__main__.py` measures what does.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.pool import ALLOCATORS
    >>> [cost.pairs for cost in costs(bundled("mlp3"), ALLOCATORS, replays=1)]
    [22, 22, 22, 22, 22, 22, 22]
    """
    if replays < 1:
        raise ValueError(f"replays: {replays}, time at least one")
    requests, first = stepwise(trace)
    head, cycle = requests[:first], requests[first:]
    size = trace.buffers.size.tolist()
    if not cycle:
        raise ValueError(f"trace {trace.name!r}: no buffer comes and goes, so there is nothing to time")
    pools = [(make(), [0] * len(size)) for make in allocators.values()]
    for pool, at in pools:
        _request(pool, head, size, at)
        for _ in range(warm):
            _request(pool, cycle, size, at)
    taken: list[list[int]] = [[] for _ in pools]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(replays):
            for times, (pool, at) in zip(taken, pools):
                begin = clock()
                _request(pool, cycle, size, at)
                times.append(clock() - begin)
    finally:
        if collecting:
            gc.enable()
    pairs = len(cycle) // 2
    return [Cost(trace.name, name, pairs, median(times) / pairs) for name, times in zip(allocators, taken)]


def _request(pool: Allocator, requests: list[int], size: list[int], at: list[int]) -> None:
    """Make requests: `b` for a malloc of buffer `b`, `~b` for its free; `at` says where each lies."""
    allocate, free = pool.allocate, pool.free
    for r in requests:
        if r >= 0:
            at[r] = allocate(size[r])
        else:
            free(at[~r])
