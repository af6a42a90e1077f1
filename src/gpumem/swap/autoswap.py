"""AutoSwap: score the gaps that straddle the peak, take the best until the load fits, schedule the copies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpumem.columns import I64
from gpumem.errors import Infeasible, NotReached
from gpumem.machine import Machine
from gpumem.simulate import simulate
from gpumem.swap.gaps import Gaps, gaps
from gpumem.swap.plan import Plan
from gpumem.swap.schedule import schedule
from gpumem.swap.scores import SCORES, Candidates, absent
from gpumem.trace import Trace

PEAKS = ("first", "all")


def autoswap(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    score: str = "swdoa",
    peaks: str = "first",
    threshold: int = 2**20,
) -> Plan:
    """Plan swaps that bring the load of `trace` down to `limit` bytes.

    Parameters
    ----------
    trace : Trace
    machine : Machine
        Gives op and copy times, and the pinned-host budget.
    limit : int
        Bytes that the load must not exceed at any op.
    score : str
        `doa`, `aoa`, `wdoa` or `swdoa`.
    peaks : str
        `first`: candidates straddle the first op of largest load, as in the paper. `all`: they straddle
        any op whose load is above the limit; without it some nets cannot reach 90 %.
    threshold : int
        Smallest candidate in bytes.

    Returns
    -------
    Plan
        Empty where the load fits already.

    Raises
    ------
    Infeasible
        Some op must hold more than `limit` bytes whatever is swapped.
    NotReached
        All candidates together leave a load above `limit` (`reached`: the paper's load_min).
    ValueError
        An unknown score or option, a limit below 1.

    Notes
    -----
    O(m (n + m)) for m candidates. Scores see the time line without swapping. A gap
    that straddles no op above the limit at its turn is passed over (the paper would take it and move its
    bytes for nothing), and so is one that would exceed the pinned-host budget.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_load * 7 // 10
    >>> plan = autoswap(trace, machine, limit)
    >>> plan.apply(trace).peak_load <= limit
    True

    References
    ----------
    Zhang et al. 2019, section IV.
    """
    _one_of("score", score, SCORES)
    _one_of("peaks", peaks, PEAKS)
    if limit < 1:
        raise ValueError(f"limit: {limit} bytes is below 1")
    if trace.peak_load <= limit:
        return Plan((), trace.n, trace.name)
    op, needs = floor(trace)
    if limit < needs:
        raise Infeasible(op, needs, limit)
    found = candidates(trace, machine, limit, peaks=peaks, threshold=threshold)
    order = np.argsort(-SCORES[score](found), kind="stable")
    chosen, load = select(found, order, limit, machine.pinned)
    if load.max() > limit:
        hint = "peaks `all` has more candidates" if peaks == "first" else ""
        raise NotReached(load_min(found), limit, hint=hint)
    return Plan(tuple(schedule(trace, machine, found.gaps.where(chosen), load, limit)), trace.n, trace.name)


def candidates(
    trace: Trace, machine: Machine, limit: int, *, peaks: str = "first", threshold: int = 2**20
) -> Candidates:
    """Return the gaps that AutoSwap considers (section IV-A); parameters as in `autoswap`."""
    _one_of("peaks", peaks, PEAKS)
    load, n = trace.load(), trace.n
    high = np.zeros(n, np.bool_)
    if peaks == "first":
        high[trace.peak[0]] = True
    else:
        high = load > limit
    found = gaps(trace)
    seen = np.concatenate([[0], np.cumsum(np.tile(high, 2))])
    straddles = seen[found.before] > seen[found.after + 1]
    found = found.where(straddles & (trace.buffers.size[found.buffer] >= max(threshold, 1)))
    size = trace.buffers.size[found.buffer]
    line = simulate(trace, machine)
    arrive = line.start[found.before % n] + np.where(found.before >= n, line.makespan, 0)
    return Candidates(
        found,
        size,
        arrive - line.end[found.after],
        machine.out.copy_ns(size),
        machine.into.copy_ns(size),
        load,
        machine.durations(trace),
    )


def _one_of(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"{what} {name!r} is unknown; there are {', '.join(known)}")


def select(c: Candidates, order: I64, limit: int, pinned: int) -> tuple[I64, I64]:
    """Take candidates in `order` until the load fits (section IV-D).

    Returns
    -------
    chosen : int64[...]
        The taken ones, ascending.
    load : int64[n]
        What they leave, each absent over its whole gap.
    """
    n, load, host = len(c.load), c.load.copy(), np.zeros(len(c.load), np.int64)
    chosen = []
    for k in order.tolist():
        if load.max() <= limit:
            break
        gap = absent(c.gaps, k, n)
        if load[gap].max(initial=0) > limit and host[gap].max(initial=0) + c.size[k] <= pinned:
            load[gap] -= c.size[k]
            host[gap] += c.size[k]
            chosen.append(k)
    return np.array(sorted(chosen), np.int64), load


def load_min(c: Candidates) -> int:
    """Return the peak with every candidate absent over its whole gap (section VI-B1)."""
    return int(_without(c.load, c.gaps, c.size).max())


def floor(trace: Trace) -> tuple[int, int]:
    """Return the op that must hold the most bytes whatever is swapped, and how many.

    No rewrite by gaps gets below: the op holds what it touches, and what is alive without a gap around it.
    """
    found = gaps(trace)
    held = _without(trace.load(), found, trace.buffers.size[found.buffer])
    return int(np.argmax(held)), int(held.max())


def _without(load: I64, found: Gaps, size: I64) -> I64:
    n = len(load)
    change = np.zeros(2 * n + 1, np.int64)
    np.add.at(change, found.after + 1, -size)
    np.add.at(change, found.before, size)
    left: I64 = load + np.cumsum(change)[: 2 * n].reshape(2, n).sum(axis=0)
    return left
