"""Jobs that share a device: their event log, judged by order, memory, data flow, links and kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from gpumem.base.arguments import strict
from gpumem.check.event_log import COPY, RUN, LoggedEvent, objection
from gpumem.check.event_order import order
from gpumem.check.event_values import values
from gpumem.check.hosts import NaiveHosts
from gpumem.simulator.machine import Machine
from gpumem.trace import I64, Trace


def host_launches(log: Sequence[LoggedEvent], traces: Mapping[str, Trace], host_costs: Mapping[str, I64]) -> None:
    """Check that no kernel starts before its host can enqueue it, and that none waits when it could start.

    Parameters
    ----------
    host_costs : mapping from job to int64[n]
        Nanoseconds that a host needs to launch each op; of jobs that are not in it the host is off.

    Raises
    ------
    CheckError
        A kernel starts before its host has come to it; or later, and at that instant nothing happens to its job that
        it can have waited for.
    """
    for name, costs in host_costs.items():
        if len(costs) != traces[name].n:
            raise ValueError(f"host_costs: {len(costs)} costs for the {traces[name].n} ops of job {name!r}")
    hosts: dict[str, NaiveHosts] = {}
    happened: dict[str, int] = {}  # when something happened to each job last
    for index, event in enumerate(log):
        if event.kind == "launch" and event.job in host_costs:
            hosts[event.job] = NaiveHosts(traces[event.job], host_costs[event.job], True, event.ns)
        host = hosts.get(event.job)
        if host is not None and event.kind in RUN:
            ns = host.issue(event.op)
            if event.ns < ns:
                raise objection(
                    "host launch", f"op {event.op} starts, but its host enqueues it at {ns} ns", index, event
                )
            if event.ns > ns and event.ns > happened.get(event.job, -1):
                reason = f"op {event.op} starts, but its host has enqueued it at {ns} ns, and nothing happens now"
                raise objection("host launch", reason, index, event)
        elif host is not None and event.kind in RUN.values():  # a recomputed op blocks its host as the op does
            host.ended(event.op, event.ns)
        happened[event.job] = event.ns


@strict
def jobs(
    log: Sequence[LoggedEvent],
    traces: Mapping[str, Trace],
    machine: Machine,
    capacity: int,
    durations: Mapping[str, I64],
    *,
    slowdown: float = 0.0,
    host_costs: Mapping[str, I64] | None = None,
    copies: Mapping[str, I64] | None = None,
) -> None:
    """Check an event log of jobs that share a device.

    Parameters
    ----------
    log : sequence of LoggedEvent
        In the order of time.
    traces : mapping from job to Trace
        As they were before any plan.
    machine : Machine
        Its links.
    capacity : int
        Bytes of the device.
    durations : mapping from job to int64[n] or int64[iterations, n]
        Nanoseconds of each op, alone on the device; by iteration where they differ.
    slowdown : float
        With `k` kernels running, each progresses at the rate `1 / (1 + slowdown * (k - 1))`.
    host_costs : mapping from job to int64[n], optional
        Nanoseconds that a host needs to launch each op; the host of other jobs is off.
    copies : mapping from job to int64, optional
        Nanoseconds of each copy, in the order in which those of the job start; of other jobs as long as its bytes take.

    Raises
    ------
    CheckError
        What is wrong, and the index of the event.

    Notes
    -----
    Order: jobs arrive, are launched and leave; each iteration runs each op once, in issue order, one after another.
    Memory: nobody holds more than its budget, nor all together more than the capacity; all is freed in the end.
    Links: one transfer at a time, each way or in all, in exactly the link's time. Kernels: each does its work, at the
    speed that the others leave it, from when its own host has enqueued it (`gpumem.check.jobs`). Values: see
    `gpumem.check.event_values.values`. The log cannot show in which order transfers queued, nor what lies on the host.
    O(events * jobs).

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from gpumem.trace import Buffers, Ops
    >>> def event(ns, kind):
    ...     return SimpleNamespace(ns=ns, job="a", kind=kind, iteration=0, op=0, buffer=0, size=4, part=0)
    >>> trace = Trace(Buffers.make([4], [0], [1]), Ops.make([[]], [[0]], duration=[5]))
    >>> log = [event(0, "arrive"), event(0, "launch"), event(0, "hold"), event(0, "start"), event(5, "end")]
    >>> log += [event(5, "free"), event(5, "iteration"), event(5, "leave")]
    >>> h200 = Machine.named("h200")
    >>> jobs(log, {"a": trace}, h200, 4, {"a": trace.ops.duration})
    >>> jobs([*log[:3], event(0, "free"), *log[3:5], *log[6:]], {"a": trace}, h200, 4, {"a": trace.ops.duration})
    Traceback (most recent call last):
    gpumem.base.errors.CheckError: event 4 (0 ns, job 'a', start): op 0 writes buffer 0, which is not held
    """
    order(log, traces)
    memory(log, traces, capacity)
    links(log, machine, copies)
    kernels(log, durations, slowdown=slowdown)
    host_launches(log, traces, host_costs or {})
    values(log, traces)


def memory(log: Sequence[LoggedEvent], traces: Mapping[str, Trace], capacity: int) -> None:
    """Count the bytes that are held, and check them against the capacity and the budgets.

    Raises
    ------
    CheckError
        Too much is held, or granted; a part is held twice, freed without being held, or still held when the job
        leaves; a size is not that of the buffer.
    """
    held: dict[tuple[str, int], LoggedEvent] = {}
    live: Counter[str] = Counter()
    budget: dict[str, int] = {}
    for index, event in enumerate(log):
        if event.kind in ("hold", "free", *COPY, *COPY.values()):
            _check_size(index, event, traces[event.job])
        if event.kind == "hold":
            if (event.job, event.part) in held:
                raise objection("held", f"part {event.part} is held already", index, event)
            held[event.job, event.part] = event
            live[event.job] += event.size
        elif event.kind == "free":
            hold = held.pop((event.job, event.part), None)
            if hold is None or hold.buffer != event.buffer:
                raise objection("held", f"part {event.part} of buffer {event.buffer} is not held", index, event)
            live[event.job] -= event.size
        elif event.kind in ("launch", "adopt"):
            budget[event.job] = event.size
        elif event.kind == "leave":
            still_held = [part_held for part_held in held.values() if part_held.job == event.job]
            if still_held:
                raise objection(
                    "held",
                    f"the job still holds part {still_held[0].part} of buffer {still_held[0].buffer}",
                    index,
                    event,
                )
            budget.pop(event.job, None)
        _check_totals(index, event, live, budget, capacity=capacity)


def _check_totals(
    index: int, event: LoggedEvent, live: Counter[str], budget: Mapping[str, int], *, capacity: int
) -> None:
    """Check what jobs hold, and are granted, against the capacity, and what the job holds against its budget."""
    job = event.job
    if live.total() > capacity:
        raise objection("capacity", f"the jobs hold {live.total()} bytes, the capacity is {capacity}", index, event)
    if (granted := sum(budget.values())) > capacity:
        raise objection("capacity", f"the budgets are {granted} bytes, the capacity is {capacity}", index, event)
    # A plan is adopted before what the old one held is freed.
    if job in budget and live[job] > budget[job] and event.kind not in ("adopt", "free"):
        raise objection("budget", f"the job holds {live[job]} bytes, its budget is {budget[job]}", index, event)


def _check_size(index: int, event: LoggedEvent, trace: Trace) -> None:
    if not 0 <= event.buffer < len(trace.buffers):
        raise objection("event", f"buffer {event.buffer} is unknown", index, event)
    if event.size != trace.buffers.size[event.buffer]:
        raise objection(
            "event",
            f"buffer {event.buffer} has {trace.buffers.size[event.buffer]} bytes, not {event.size}",
            index,
            event,
        )


@strict
def links(log: Sequence[LoggedEvent], machine: Machine, copies: Mapping[str, I64] | None = None) -> None:
    """Check that each engine copies one buffer at a time, in exactly the time that its bytes, or `copies`, take.

    Raises
    ------
    CheckError
        Two transfers at once on one engine, one that takes another time, never ends or never begins.
    """
    busy: dict[str, tuple[int, LoggedEvent]] = {}  # what each engine copies
    given = {job: iter(ns.tolist()) for job, ns in (copies or {}).items()}
    takes: dict[str, int] = {}  # what each engine is busy for
    asked: dict[tuple[str, int], tuple[int, LoggedEvent]] = {}  # copies in that an op waits for before their time
    for index, event in enumerate(log):
        direction = "in" if event.kind.startswith("in") else "out"
        engine = direction if machine.duplex else "both ways"
        if event.kind in COPY:
            if engine in busy:
                other = busy[engine][1]
                raise objection(
                    "link", f"job {other.job!r} is still copying buffer {other.buffer} {other.kind}", index, event
                )
            busy[engine] = index, event
            takes[engine] = _copy_ns(index, event, machine, given)
            if event.kind == "in":
                asked.pop((event.job, event.part), None)
        elif event.kind == "passive":
            asked[event.job, event.part] = index, event
        elif event.kind in COPY.values():
            _, begun = busy.pop(engine, (-1, None))
            _check_ended(index, event, begun, takes.get(engine, 0))
    for index, event in busy.values():
        raise objection("link", "the copy never ends", index, event)
    for index, event in asked.values():
        raise objection("link", f"the copy-in of part {event.part} of buffer {event.buffer} never begins", index, event)


def _check_ended(index: int, event: LoggedEvent, begun: LoggedEvent | None, takes: int) -> None:
    """Check that the copy which ends is the one that its engine has begun, and took its time."""
    copy = (event.job, event.buffer, event.part, event.kind)
    if begun is None or (begun.job, begun.buffer, begun.part, COPY[begun.kind]) != copy:
        what = f"no such copy of part {event.part} of buffer {event.buffer} is under way"
        raise objection("link", what, index, event)
    if event.ns - begun.ns != takes:
        reason = f"the copy of {event.size} bytes took {event.ns - begun.ns} ns, not {takes}"
        raise objection("duration", reason, index, event)


def _copy_ns(index: int, event: LoggedEvent, machine: Machine, given: Mapping[str, Iterator[int]]) -> int:
    """How long the copy takes that begins."""
    if event.job not in given:
        link = machine.into if event.kind == "in" else machine.out
        return int(link.copy_ns(np.array([event.size]))[0])
    ns = next(given[event.job], None)
    if ns is None:
        raise objection("link", "the job makes more copies than durations are given for", index, event)
    return ns


def kernels(log: Sequence[LoggedEvent], durations: Mapping[str, I64], *, slowdown: float = 0.0) -> None:
    """Check that each op progresses by its duration while it runs.

    Raises
    ------
    CheckError
        An op takes less or more than it should, by more than rounding: a nanosecond for its end and for each instant
        at which others start or end while it runs; none where nothing slows it down.
    """
    rate = Fraction(slowdown)
    begun: dict[str, tuple[Fraction, int]] = {}  # of each running op: `progress` and `changes` when it began
    progress, changes, now = Fraction(0), 0, -1  # of a kernel that ran all the time; instants at which others changed
    for index, event in enumerate(log):
        if event.kind not in RUN and event.kind not in RUN.values():
            continue
        if begun:
            progress += (event.ns - now) / (1 + rate * (len(begun) - 1))
        if event.kind in RUN:
            changes += event.ns != now
            begun[event.job] = progress, changes
        else:
            start, before = begun.pop(event.job)
            rounding = 1 + changes - before if rate else 0
            each = durations[event.job]
            done, duration = (
                progress - start,
                int(each[event.op] if each.ndim == 1 else each[event.iteration, event.op]),
            )
            if abs(done - duration) > rounding:
                raise objection(
                    "duration", f"op {event.op} did work of {float(done):g} ns, it takes {duration}", index, event
                )
            changes += event.ns != now
        now = event.ns
