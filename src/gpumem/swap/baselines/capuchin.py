"""Capuchin: swap what can hide its copies, then swap or recompute, whichever costs less; learn when to fetch.

Time goes to the right; FT is the free time that is left when both copies are hidden::

    compute  [evicted-access]------------------------------------[back-access]
    copies                   [swap out]<------- FT ------>[swap in]
                                                          ^ in-trigger; earlier by 5 % of the swap where it came late
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import COPY, Timeline
from gpumem.swap.baselines.capuchin_policy import AccessPattern, Choice, select
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.options import option
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.facts.recompute_scratch import beside, states
from gpumem.swap.facts.times import Times, queued
from gpumem.swap.plan import Carried, Decision, Plan, Recompute, Swap
from gpumem.swap.plan.replay import replays
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import F64, I64, Csr, Trace

STEP = 0.05  # of a copy-in's time, by which a late one is triggered earlier
WAYS = ((True, False), (True, True), (False, False))  # recompute? with what was dropped for longer made anew?


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Capuchin(PlannerRecord):
    """The planner `capuchin`, which says what its options are."""

    recompute: bool = True
    queue: bool = False
    feedback: int = option(20)
    threshold: int = option(2**20)


@plans(Capuchin)
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
    helps no op above the limit at its turn is passed over, and so is a recomputation whose scratch makes a peak as
    high; in-trigger and release move only as far as the load stays within the limit. What a recomputation starts from
    and was dropped as well comes back with it and stays (the paper's collective recomputation), or is made anew in
    scratch each time, as algorithm 2 counts it, or all is swapped: of what gets to the limit, the quickest.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("resnet18")
    >>> plan = capuchin(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes // 2)
    >>> plan.apply(trace).peak_live_bytes <= trace.peak_live_bytes // 2
    True

    References
    ----------
    Peng, Shi, Dai, Jin, Ma, Xiong, Yang and Qian, Capuchin, ASPLOS 2020, sections 4.3 to 4.5, algorithms 1 and 2.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    if work.over():
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    c = AccessPattern.of(trace, machine, limit, threshold)
    choice = _choose(c, limit, recompute, queue)
    return _with_feedback(c, choice, limit, feedback)


def _choose(c: AccessPattern, limit: int, recompute: bool, queue: bool) -> Choice:
    """Of the ways that get to the limit, that with the shortest iteration, as it is without feedback."""
    reached, found = c.trace.peak_live_bytes, list[Choice]()
    for again, anew in WAYS if recompute else WAYS[-1:]:
        load, choice = _lowered(c, limit, again, anew, queue)
        reached = min(reached, load)
        found += [choice] if choice else []
        if found and (work.over() or not found[0].recomputes):
            break
    if not found:
        raise NotReached(reached, limit, hint=work.hint("a smaller threshold has more candidates"))
    return min(found, key=lambda choice: _makespan(c, choice, limit)) if len(found) > 1 else found[0]


def _lowered(c: AccessPattern, limit: int, again: bool, anew: bool, queue: bool) -> tuple[int, Choice | None]:
    """Take candidates until the load fits, with what recomputation holds on the way; return the load, None above it."""
    target, lowest = limit, c.trace.peak_live_bytes
    while target > 0 and not work.over():
        choice = select(c, target, again, anew, queue)
        load = _tight(c, choice, _due(c, choice), limit).peak
        if load <= limit:
            return load, choice
        if load >= lowest:  # asking for more did not help
            break
        lowest, target = load, target - (load - limit)
    return lowest, None


def _makespan(c: AccessPattern, choice: Choice, limit: int) -> int:
    """How long an iteration takes, with each copy-in triggered as late as it can hide."""
    due = _due(c, choice)
    plan = _schedule(c, choice, due, _tight(c, choice, due, limit), c.in_ns.astype(np.float64))
    return simulate(plan.apply(c.trace), c.machine, capacity=limit).makespan


def _due(c: AccessPattern, choice: Choice) -> dict[int, int]:
    """Before which op each gap ends: its back-access, or earlier where a recomputation starts from it."""
    g = c.found.gaps
    due = {k: int(g.before[k]) for k in [*choice.swaps, *choice.recomputes]}
    by_buffer = Csr.grouped(g.buffer[list(due)], np.array(list(due), np.int64), len(c.trace.buffers)).tolist()
    again, work = set(choice.recomputes), list(choice.recomputes)
    device = c.with_plan(c.drop(k) for k in again) if choice.anew else c.device
    while work:
        k = work.pop()
        (made,) = replays(device, [c.drop(k, due[k])])
        for j in (j for b in made.sources for j in by_buffer[b]):
            if g.after[j] < due[k] < due[j]:
                due[j] = due[k]
                work += [j] if j in again else []
    return due


def _tight(c: AccessPattern, choice: Choice, due: dict[int, int], limit: int) -> LiveBytes:
    """What is held with each gap absent as long as can be, and with what reruns need beside."""
    g, rows = c.found.gaps, list(due)
    room = LiveBytes.of(c.trace, limit, (g.after[rows] + 1, np.array([*due.values()], np.int64), c.size[rows]))
    drops = [c.drop(k, due[k]) for k in choice.recomputes]
    away = [
        Swap(int(g.buffer[k]), int(g.after[k]), int(g.before[k]), int(g.after[k]) + 1, due[k]) for k in choice.swaps
    ]
    for made in replays(c.with_plan([*away, *drops]), drops):
        room.need(made.place, beside(made, c.trace.buffers.size))
    return room


def _schedule(c: AccessPattern, choice: Choice, due: dict[int, int], room: LiveBytes, lead: F64) -> Plan:
    """Give memory back when the copy-out has ended, trigger each copy-in `lead` ns before it is due."""
    g, times = c.found.gaps, Times.of(c.line)
    outs, release = sorted(choice.swaps, key=lambda k: (int(c.line.end[g.after[k]]), k)), {}
    for k, begins in zip(outs, times.begins(queued(c.line.end[g.after[outs]], c.out_ns[outs])).tolist()):
        until = min(begins, due[k])
        release[k] = room.hold(int(g.after[k]) + 1, max(until, int(g.after[k]) + 1), int(c.size[k]))
    swaps = sorted(choice.swaps, key=lambda k: (due[k], k))
    triggers = times.started(times.start[[due[k] for k in swaps]] - lead[swaps]).tolist()
    prefetch = []
    for k, wanted in zip(swaps, triggers):
        prefetch.append(room.fetch(min(max(wanted, release[k]), due[k]), due[k], int(c.size[k])))
    chosen = g.where(np.array(swaps, np.int64))
    decisions: list[Decision] = [*Swap.each(chosen, np.array([release[k] for k in swaps]), np.array(prefetch))]
    decisions += [c.drop(k, due[k]) for k in sorted(choice.recomputes, key=lambda k: (int(c.found.op[k]), k))]
    return Plan.of(c.trace, decisions)


def _with_feedback(c: AccessPattern, choice: Choice, limit: int, turns: int) -> Plan:
    """Run the plan, trigger the copies that came late 5 % of their time earlier, and repeat (section 4.4)."""
    due, lead = _due(c, choice), c.in_ns.astype(np.float64)
    room = _tight(c, choice, due, limit)
    best: tuple[int, Plan] | None = None
    last, late = Plan(), np.zeros(0, np.int64)
    for _ in range(turns + 1):
        plan = _schedule(c, choice, due, room.copy(), lead)
        if plan != last:
            done = plan.carried(c.trace)
            line = simulate(done.trace, c.machine, capacity=limit)
            if best is None or line.makespan < best[0]:
                best = line.makespan, plan
            last, late = plan, _late(c, plan, done, line)
        if not len(late) or work.over():
            break
        lead[late] += STEP * c.in_ns[late]
    assert best is not None
    _settle(c, choice.host, best[1])
    return best[1]


def _settle(c: AccessPattern, host: Pinned, plan: Plan) -> None:
    """Let the host hold what the plan needs, no longer the most that it might."""
    drops = [d for d in plan.decisions if isinstance(d, Recompute)]
    kept = host.keep(states(c.trace, replays(c.with_plan([*plan.swaps, *drops]), drops)))
    assert kept, plan
    host.settle(plan.swaps)


def _late(c: AccessPattern, plan: Plan, done: Carried, line: Timeline) -> I64:
    """The gaps whose copy-in some op waited for to its end."""
    row = c.found.gaps.rows(c.trace.n)
    waited = line.start[(line.cause == COPY) & (line.wait > 0)]
    late = np.isin(line.end[done.back], waited).tolist()
    swaps = (d for d, came_late in zip(plan.decisions, late) if came_late and isinstance(d, Swap))
    return np.array([row[d.buffer, d.after] for d in swaps], np.int64)
