"""Capuchin: swap what can hide its copies, then swap or recompute, whichever costs less; learn when to fetch.

Time goes to the right; FT is the free time that is left when both copies are hidden::

    compute  [evicted-access]------------------------------------[back-access]
    copies                   [swap out]<------- FT ------>[swap in]
                                                          ^ in-trigger; earlier by 5 % of the swap if it came late
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
from gpumem.swap.baselines.capuchin_policy import AccessPattern, CapuchinPolicy, Choice, select
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

# Share of a copy-in's time by which a late one is triggered earlier: the paper's (section 4.4).
STEP = 0.05


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Capuchin(PlannerRecord):
    """The planner `capuchin` and its options."""

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
        the other, out before the live bytes exceed the limit and in after that. Then the link fills up, and
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
    high; in-trigger and release move only as far as the live bytes stay within the limit. What a recomputation starts
    from and was dropped as well comes back with it and stays (the paper's collective recomputation), or is recomputed
    in scratch each time, as algorithm 2 counts it, or all is swapped: of what reaches the limit, the quickest.

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
    pattern = AccessPattern.of(trace, machine, limit, threshold)
    choice = _choose(pattern, limit, recompute=recompute, queue=queue)
    return _with_feedback(pattern, choice, limit, feedback)


def _choose(pattern: AccessPattern, limit: int, *, recompute: bool, queue: bool) -> Choice:
    """Of the policies that reach the limit, the choice with the shortest iteration, as it is without feedback."""
    swap_only = CapuchinPolicy(recompute=False, in_scratch=False, queue=queue)
    both = [CapuchinPolicy(recompute=True, in_scratch=in_scratch, queue=queue) for in_scratch in (False, True)]
    reached, choices = pattern.trace.peak_live_bytes, list[Choice]()
    for policy in [*both, swap_only] if recompute else [swap_only]:
        peak, choice = _reach(pattern, limit, policy)
        reached = min(reached, peak)
        choices += [choice] if choice else []
        # Without recomputations the other policies would choose the same.
        if choices and (work.over() or not choices[0].recomputes):
            break
    if not choices:
        raise NotReached(reached, limit, hint=work.hint("a smaller threshold has more candidates"))
    return min(choices, key=lambda choice: _makespan(pattern, choice, limit)) if len(choices) > 1 else choices[0]


def _reach(pattern: AccessPattern, limit: int, policy: CapuchinPolicy) -> tuple[int, Choice | None]:
    """Take candidates until the peak fits, with what recomputation holds on the way; return it, and None if above it.

    `select` does not know what recomputations hold, so it is asked for so much less as the peak was too high.
    """
    target, lowest = limit, pattern.trace.peak_live_bytes
    while target > 0 and not work.over():
        choice = select(pattern, target, policy)
        peak = _lowest_live(pattern, choice, _due(pattern, choice), limit).peak
        if peak <= limit:
            return peak, choice
        if peak >= lowest:  # asking for more did not help
            break
        lowest, target = peak, target - (peak - limit)
    return lowest, None


def _makespan(pattern: AccessPattern, choice: Choice, limit: int) -> int:
    """How long an iteration takes, with each copy-in triggered as late as it can hide."""
    due = _due(pattern, choice)
    live = _lowest_live(pattern, choice, due, limit)
    plan = _schedule(pattern, choice, due, live, pattern.in_ns.astype(np.float64))
    return simulate(plan.apply(pattern.trace), pattern.machine, capacity=limit).makespan


def _due(pattern: AccessPattern, choice: Choice) -> dict[int, int]:
    """Before which op each row's gap ends: its back-access, or earlier where a recomputation starts from it."""
    spans, trace = pattern.values.gaps, pattern.trace
    due = {row: int(spans.before[row]) for row in [*choice.swaps, *choice.recomputes]}
    rows = np.array(list(due), np.int64)
    by_buffer = Csr.grouped(spans.buffer[rows], rows, len(trace.buffers)).tolist()
    recomputed, pending = set(choice.recomputes), list(choice.recomputes)
    in_scratch = choice.policy.in_scratch
    device = pattern.with_plan(pattern.drop(row) for row in recomputed) if in_scratch else pattern.device
    while pending:
        row = pending.pop()
        (replayed,) = replays(device, [pattern.drop(row, due[row])])
        for source in (source for buffer in replayed.sources for source in by_buffer[buffer]):
            if spans.after[source] < due[row] < due[source]:
                due[source] = due[row]
                pending += [source] if source in recomputed else []
    return due


def _lowest_live(pattern: AccessPattern, choice: Choice, due: dict[int, int], limit: int) -> LiveBytes:
    """The live bytes with each gap off the device as long as can be, and with the scratch of recomputations."""
    spans, rows = pattern.values.gaps, list(due)
    release = spans.after[rows] + 1
    live = LiveBytes.of(pattern.trace, limit, (release, np.array([*due.values()], np.int64), pattern.size[rows]))
    drops = [pattern.drop(row, due[row]) for row in choice.recomputes]
    swaps = [pattern.swap(row, due[row]) for row in choice.swaps]
    for replayed in replays(pattern.with_plan([*swaps, *drops]), drops):
        live.need(replayed.place, beside(replayed, pattern.trace.buffers.size))
    return live


def _schedule(pattern: AccessPattern, choice: Choice, due: dict[int, int], live: LiveBytes, lead: F64) -> Plan:
    """Release memory when the copy-out has ended, trigger each copy-in `lead` ns before it is due."""
    spans, times, line = pattern.values.gaps, Times.of(pattern.line), pattern.line
    outs, release = sorted(choice.swaps, key=lambda row: (int(line.end[spans.after[row]]), row)), {}
    copied = queued(line.end[spans.after[outs]], pattern.out_ns[outs])
    for row, ends in zip(outs, times.begins(copied).tolist()):
        first = int(spans.after[row]) + 1
        release[row] = live.hold(first, max(min(ends, due[row]), first), int(pattern.size[row]))
    swaps = sorted(choice.swaps, key=lambda row: (due[row], row))
    triggers = times.started(times.start[[due[row] for row in swaps]] - lead[swaps]).tolist()
    prefetch = []
    for row, trigger in zip(swaps, triggers):
        earliest = min(max(trigger, release[row]), due[row])
        prefetch.append(live.fetch(earliest, due[row], int(pattern.size[row])))
    chosen = spans.where(np.array(swaps, np.int64))
    decisions: list[Decision] = [*Swap.each(chosen, np.array([release[row] for row in swaps]), np.array(prefetch))]
    recomputed = sorted(choice.recomputes, key=lambda row: (int(pattern.values.op[row]), row))
    decisions += [pattern.drop(row, due[row]) for row in recomputed]
    return Plan.of(pattern.trace, decisions)


def _with_feedback(pattern: AccessPattern, choice: Choice, limit: int, turns: int) -> Plan:
    """Simulate the plan, trigger the copies that came late 5 % of their time earlier, and repeat (section 4.4)."""
    due, lead = _due(pattern, choice), pattern.in_ns.astype(np.float64)
    live = _lowest_live(pattern, choice, due, limit)
    best: tuple[int, Plan] | None = None
    last, late = Plan(), np.zeros(0, np.int64)
    for _ in range(turns + 1):
        plan = _schedule(pattern, choice, due, live.copy(), lead)
        if plan != last:
            done = plan.carried(pattern.trace)
            line = simulate(done.trace, pattern.machine, capacity=limit)
            if best is None or line.makespan < best[0]:
                best = line.makespan, plan
            last, late = plan, _late(pattern, plan, done, line)
        if not len(late) or work.over():
            break
        lead[late] += STEP * pattern.in_ns[late]
    assert best is not None
    _release_unused_host(pattern, choice.host, best[1])
    return best[1]


def _release_unused_host(pattern: AccessPattern, host: Pinned, plan: Plan) -> None:
    """Let the host hold what the plan needs, no longer the most that it might."""
    drops = [decision for decision in plan.decisions if isinstance(decision, Recompute)]
    kept = host.keep(states(pattern.trace, replays(pattern.with_plan([*plan.swaps, *drops]), drops)))
    assert kept, plan
    host.place_copies(plan.swaps)


def _late(pattern: AccessPattern, plan: Plan, done: Carried, line: Timeline) -> I64:
    """The rows whose copy-in some op waited for to its end."""
    row = pattern.values.gaps.rows(pattern.trace.n)
    waited = line.start[(line.cause == COPY) & (line.wait > 0)]
    late = np.isin(line.end[done.back], waited).tolist()
    swaps = (swap for swap, came_late in zip(plan.decisions, late) if came_late and isinstance(swap, Swap))
    return np.array([row[swap.buffer, swap.after] for swap in swaps], np.int64)
