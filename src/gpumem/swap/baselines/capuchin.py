"""Capuchin: swap what can hide its copies, then swap or recompute, whichever costs less; learn when to fetch.

Time goes to the right; FT is the free time that is left when both copies are hidden::

    compute  [evicted-access]------------------------------------[back-access]
    copies                   [swap out]<------- FT ------>[swap in]
                                                          ^ in-trigger; earlier by 5 % of the swap where it came late
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem._strict import strict
from gpumem.columns import F64, I64, Csr
from gpumem.deadline import LATE, Deadline
from gpumem.errors import NotReached
from gpumem.machine import Machine
from gpumem.simulate import simulate
from gpumem.swap.accounts.pinned import Pinned
from gpumem.swap.accounts.room import Room
from gpumem.swap.accounts.times import Times
from gpumem.swap.baselines.msps import Chains
from gpumem.swap.gaps import straddle
from gpumem.swap.limits import fits
from gpumem.swap.plan import Carried, Decision, Plan, Recompute, Swap
from gpumem.swap.recompute import Recomputable, recomputable
from gpumem.timeline import COPY, Timeline
from gpumem.trace import Trace

STEP = 0.05  # of a copy-in's time, by which a late one is triggered earlier


@strict
def capuchin(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    recompute: bool = True,
    queue: bool = False,
    feedback: int = 20,
    threshold: int = 2**20,
    seconds: float | None = None,
) -> Plan:
    """Plan swaps and recomputations by free time and memory saving per second.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    recompute : bool
        Whether to recompute as well; without, swap only.
    queue : bool
        Not in the paper: let a swap cost, instead of -FT, what it adds to the lateness of the chosen copies, one behind
        the other, out before the load exceeds the limit and in after it. Then the link fills up, and
        recomputation takes over.
    feedback : int
        Simulated iterations at most after which in-triggers move.
    threshold : int
        Smallest candidate in bytes.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Returns
    -------
    Plan
        Of the plans that the feedback saw, the one with the shortest iteration.

    Notes
    -----
    O(m (n + m)) for m candidates, and a rewrite and a simulation for each turn of the feedback. Candidates are gaps
    within one iteration that straddle an op above the limit. Departures: the access pattern is that of the
    simulated iteration without a limit, where the paper's passive mode subtracts its own stalls; a candidate that
    helps no op above the limit at its turn is passed over; a recomputed value stays until its own back-access (the
    paper's collective recomputation), though algorithm 2 counts chains as if they ran anew; in-trigger and release
    move only as far as the load stays within the limit.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("resnet18")
    >>> plan = capuchin(trace, Machine.named("gtx1080ti"), trace.peak_load // 2)
    >>> plan.apply(trace).peak_load <= trace.peak_load // 2
    True

    References
    ----------
    Peng, Shi, Dai, Jin, Ma, Xiong, Yang and Qian, Capuchin, ASPLOS 2020, sections 4.3 to 4.5, algorithms 1 and 2.
    """
    for what, value in (("feedback", feedback), ("threshold", threshold)):
        if value < 0:
            raise ValueError(f"{what}: {value} is below 0")
    until = Deadline.within(seconds)
    if fits(trace, limit):
        return Plan.of(trace)
    if until.over():
        raise NotReached(trace.peak_load, limit, hint=LATE)
    c = AccessPattern.of(trace, machine, limit, threshold)
    choice = _choose(c, limit, recompute, queue, until)
    return _with_feedback(c, choice, limit, feedback, until)


@dataclass(frozen=True, slots=True, eq=False)
class AccessPattern:
    """The access pattern, and the rows of `found` that are candidates, by free time, longest first."""

    trace: Trace
    machine: Machine
    line: Timeline
    found: Recomputable
    rows: I64
    free_ns: I64  # FT of every gap
    out_ns: I64
    in_ns: I64
    size: I64
    go_ns: I64  # start of the first op in the gap whose load is above the limit
    come_ns: I64  # end of the last

    @classmethod
    def of(cls, trace: Trace, machine: Machine, limit: int, threshold: int) -> AccessPattern:
        """Measure an iteration; rank the gaps that straddle an op above the limit (section 4.3)."""
        found, line, n = recomputable(trace, machine), simulate(trace, machine), trace.n
        g = found.gaps
        size = trace.buffers.size[g.buffer]
        out_ns, in_ns = machine.out.copy_ns(size), machine.into.copy_ns(size)
        free_ns = line.start[g.before % n] - in_ns - line.end[g.after] - out_ns
        high = trace.load() > limit
        mine = (g.before < n) & (size >= max(threshold, 1)) & straddle(g, high)
        rows = np.flatnonzero(mine)
        rows = rows[np.lexsort((-size[rows], -free_ns[rows]))]
        ops = np.flatnonzero(high)
        first, last = np.searchsorted(ops, g.after + 1), np.searchsorted(ops, g.before) - 1
        go = line.start[ops[np.minimum(first, len(ops) - 1)]]
        come = line.end[ops[np.maximum(last, 0)]]
        return cls(trace, machine, line, found, rows, free_ns, out_ns, in_ns, size, go, come)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is swapped and what is recomputed: rows of the candidates; and what that holds on the host."""

    swaps: list[int]
    recomputes: list[int]
    host: Pinned


def _choose(c: AccessPattern, limit: int, recompute: bool, queue: bool, until: Deadline) -> Choice:
    """Take candidates until the load fits, what recomputation holds on the way included; else try swaps alone."""
    reached = c.trace.peak_load
    for again in [True, False] if recompute else [False]:
        target, lowest = limit, c.trace.peak_load
        while target > 0 and not until.over():
            choice = _select(c, target, again, queue, until)
            load = int(_tight(c, choice, _due(c, choice), limit).load.max())
            if load <= limit:
                return choice
            reached = min(reached, load)
            if load >= lowest:  # asking for more did not help
                break
            lowest, target = load, target - (load - limit)
    raise NotReached(reached, limit, hint=until.hint("a smaller threshold has more candidates"))


def _select(c: AccessPattern, target: int, recompute: bool, queue: bool, until: Deadline) -> Choice:
    """Algorithm 1: those that hide both copies first, then whichever overhead is smaller."""
    load, left = c.trace.load(), c.rows.tolist()
    choice = Choice([], [], Pinned(c.trace, c.found.gaps, c.machine.pinned))
    chains = Chains.of(c.trace, c.found, left if recompute else [])
    while left and load.max() > target and not until.over():
        k = left[0]
        cost = _stall(c, [*choice.swaps, k]) - _stall(c, choice.swaps) if queue else -int(c.free_ns[k])
        j = chains.best() if cost > 0 else -1
        again = j >= 0 and chains.overhead(j) < cost
        k = j if again else k
        left.remove(k)
        after, before = int(c.found.gaps.after[k]), int(c.found.gaps.before[k])
        gap = slice(after + 1, before)
        goes = load[gap].max(initial=0) > target and (again or choice.host.take(k, after, before))
        if goes:
            load[gap] -= c.size[k]
            (choice.recomputes if again else choice.swaps).append(k)
        if goes and again:
            chains.take(k)
        else:
            chains.discard(k)
    return choice


def _stall(c: AccessPattern, swaps: list[int]) -> int:
    """By how much the worst copies are late if they queue, outs forwards, ins backwards, and meet no load too high."""
    if not swaps:
        return 0
    g, rows = c.found.gaps, np.array(swaps, np.int64)
    outs, ins = rows[np.argsort(g.after[rows], kind="stable")], rows[np.argsort(g.before[rows], kind="stable")]
    busy = np.cumsum(c.out_ns[outs])
    gone = busy + np.maximum.accumulate(c.line.end[g.after[outs]] - busy + c.out_ns[outs])
    busy = np.cumsum(c.in_ns[ins][::-1])[::-1]
    begin = np.minimum.accumulate((c.line.start[g.before[ins]] + busy - c.in_ns[ins])[::-1])[::-1] - busy
    return max(int((gone - c.go_ns[outs]).max()), 0) + max(int((c.come_ns[ins] - begin).max()), 0)


def _due(c: AccessPattern, choice: Choice) -> dict[int, int]:
    """Before which op each gap ends: its back-access, or earlier where a recomputation starts from it."""
    g = c.found.gaps
    due = {k: int(g.before[k]) for k in [*choice.swaps, *choice.recomputes]}
    by_buffer = Csr.grouped(g.buffer[list(due)], np.array(list(due), np.int64), len(c.trace.buffers)).tolist()
    again, work = set(choice.recomputes), list(choice.recomputes)
    while work:
        k = work.pop()
        for j in (j for b in c.trace.ops.reads[c.found.op[k]].tolist() for j in by_buffer[b]):
            if g.after[j] < due[k] < due[j]:
                due[j] = due[k]
                work += [j] if j in again else []
    return due


def _tight(c: AccessPattern, choice: Choice, due: dict[int, int], limit: int) -> Room:
    """The load with each gap absent as long as can be, and with the other outputs of what runs again."""
    g, b, load = c.found.gaps, c.trace.buffers, c.trace.load()
    for k, at in due.items():
        load[g.after[k] + 1 : at] -= c.size[k]
    mine = ~b.host & ~c.trace.eternal
    begins = np.bincount(b.start[mine], b.size[mine], c.trace.n).astype(np.int64)  # not there yet when it runs
    scratch: dict[int, int] = {}
    for k in choice.recomputes:
        others = int(b.size[c.trace.ops.writes[c.found.op[k]]].sum() - c.size[k])
        scratch[due[k]] = max(scratch.get(due[k], 0), others)
    for at, size in scratch.items():
        load[at] += max(size - int(begins[at]), 0)
    return Room(load, limit)


def _schedule(c: AccessPattern, choice: Choice, due: dict[int, int], room: Room, lead: F64) -> Plan:
    """Give memory back when the copy-out has ended, trigger each copy-in `lead` ns before it is due."""
    g, times = c.found.gaps, Times.of(c.line)
    free, release = 0, {}
    for k in sorted(choice.swaps, key=lambda k: (int(c.line.end[g.after[k]]), k)):
        free = max(free, int(c.line.end[g.after[k]])) + int(c.out_ns[k])
        until = min(int(times.begins(free)), due[k])
        release[k] = room.hold(int(g.after[k]) + 1, max(until, int(g.after[k]) + 1), int(c.size[k]))
    swaps = sorted(choice.swaps, key=lambda k: (due[k], k))
    prefetch = []
    for k in swaps:
        wanted = int(times.started(times.start[due[k]] - lead[k]))
        prefetch.append(room.fetch(min(max(wanted, release[k]), due[k]), due[k], int(c.size[k])))
    chosen = g.where(np.array(swaps, np.int64))
    decisions: list[Decision] = [*Swap.each(chosen, np.array([release[k] for k in swaps]), np.array(prefetch))]
    for k in sorted(choice.recomputes, key=lambda k: (int(c.found.op[k]), k)):
        decisions.append(Recompute(int(g.buffer[k]), int(g.after[k]), int(g.before[k]), due[k]))
    return Plan.of(c.trace, decisions)


def _with_feedback(c: AccessPattern, choice: Choice, limit: int, turns: int, until: Deadline) -> Plan:
    """Run the plan, trigger the copies that came late 5 % of their time earlier, and repeat (section 4.4)."""
    due, lead = _due(c, choice), c.in_ns.astype(np.float64)
    best: tuple[int, Plan] | None = None
    last, late = Plan(), np.zeros(0, np.int64)
    for _ in range(turns + 1):
        plan = _schedule(c, choice, due, _tight(c, choice, due, limit), lead)
        if plan != last:
            done = plan.carried(c.trace)
            line = simulate(done.trace, c.machine, capacity=limit)
            if best is None or line.makespan < best[0]:
                best = line.makespan, plan
            last, late = plan, _late(c, plan, done, line)
        if not len(late) or until.over():
            break
        lead[late] += STEP * c.in_ns[late]
    assert best is not None
    choice.host.settle(best[1].swaps)
    return best[1]


def _late(c: AccessPattern, plan: Plan, done: Carried, line: Timeline) -> I64:
    """The gaps whose copy-in some op waited for to its end."""
    row = c.found.gaps.rows(c.trace.n)
    waited = line.start[(line.cause == COPY) & (line.wait > 0)]
    late = np.isin(line.end[done.back], waited).tolist()
    swaps = (d for d, came_late in zip(plan.decisions, late) if came_late and isinstance(d, Swap))
    return np.array([row[d.buffer, d.after] for d in swaps], np.int64)
