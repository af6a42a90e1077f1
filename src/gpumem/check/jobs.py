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


def handing_over(log: Sequence[LoggedEvent], traces: Mapping[str, Trace], handing: Mapping[str, I64]) -> None:
    """Check that no kernel starts before its host can hand it over, and that none stands idle when it could start.

    Parameters
    ----------
    handing : mapping from job to int64[n]
        Nanoseconds that a host needs to hand over each op; of jobs that are not in it the host is off.

    Raises
    ------
    CheckError
        A kernel starts before its host has come to it; or later, and at that instant nothing happens to its job that
        it can have waited for.
    """
    for name, costs in handing.items():
        if len(costs) != traces[name].n:
            raise ValueError(f"handing: {len(costs)} costs for the {traces[name].n} ops of job {name!r}")
    hosts: dict[str, NaiveHosts] = {}
    happened: dict[str, int] = {}  # when something happened to each job last
    for i, e in enumerate(log):
        if e.kind == "launch" and e.job in handing:
            hosts[e.job] = NaiveHosts(traces[e.job], handing[e.job], True, e.ns)
        mine = hosts.get(e.job)
        if mine is not None and e.kind in RUN:
            ns = mine.issue(e.op)
            if e.ns < ns:
                raise objection("handing", f"op {e.op} starts, but its host hands it over at {ns} ns", i, e)
            if e.ns > ns and e.ns > happened.get(e.job, -1):
                told = f"op {e.op} starts, but its host has handed it over at {ns} ns, and nothing happens now"
                raise objection("handing", told, i, e)
        elif mine is not None and e.kind in RUN.values():  # a rerun blocks as its op does
            mine.ended(e.op, e.ns)
        happened[e.job] = e.ns


@strict
def jobs(
    log: Sequence[LoggedEvent],
    traces: Mapping[str, Trace],
    machine: Machine,
    capacity: int,
    durations: Mapping[str, I64],
    *,
    slowdown: float = 0.0,
    handing: Mapping[str, I64] | None = None,
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
    handing : mapping from job to int64[n], optional
        Nanoseconds that a host needs to hand over each op; the host of other jobs is off.
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
    speed that the others leave it, from when its own host has handed it over (`gpumem.check.jobs`). Values: see
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
    handing_over(log, traces, handing or {})
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
    load: Counter[str] = Counter()
    budget: dict[str, int] = {}
    for i, e in enumerate(log):
        if e.kind in ("hold", "free", *COPY, *COPY.values()):
            _check_size(i, e, traces[e.job])
        if e.kind == "hold":
            if (e.job, e.part) in held:
                raise objection("held", f"part {e.part} is held already", i, e)
            held[e.job, e.part] = e
            load[e.job] += e.size
        elif e.kind == "free":
            hold = held.pop((e.job, e.part), None)
            if hold is None or hold.buffer != e.buffer:
                raise objection("held", f"part {e.part} of buffer {e.buffer} is not held", i, e)
            load[e.job] -= e.size
        elif e.kind in ("launch", "adopt"):
            budget[e.job] = e.size
        elif e.kind == "leave":
            kept = [h for h in held.values() if h.job == e.job]
            if kept:
                raise objection("held", f"the job still holds part {kept[0].part} of buffer {kept[0].buffer}", i, e)
            budget.pop(e.job, None)
        if load.total() > capacity:
            raise objection("capacity", f"the jobs hold {load.total()} bytes, the capacity is {capacity}", i, e)
        if sum(budget.values()) > capacity:
            raise objection(
                "capacity", f"the budgets are {sum(budget.values())} bytes, the capacity is {capacity}", i, e
            )
        if e.job in budget and load[e.job] > budget[e.job] and e.kind not in ("adopt", "free"):
            raise objection("budget", f"the job holds {load[e.job]} bytes, its budget is {budget[e.job]}", i, e)


def _check_size(i: int, e: LoggedEvent, trace: Trace) -> None:
    if not 0 <= e.buffer < len(trace.buffers):
        raise objection("event", f"buffer {e.buffer} is unknown", i, e)
    if e.size != trace.buffers.size[e.buffer]:
        raise objection("event", f"buffer {e.buffer} has {trace.buffers.size[e.buffer]} bytes, not {e.size}", i, e)


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
    for i, e in enumerate(log):
        way = "in" if e.kind.startswith("in") else "out"
        engine = way if machine.duplex else "both ways"
        if e.kind in COPY:
            if engine in busy:
                other = busy[engine][1]
                raise objection("link", f"job {other.job!r} is still copying buffer {other.buffer} {other.kind}", i, e)
            busy[engine] = i, e
            takes[engine] = _copy_ns(i, e, machine, given)
            if e.kind == "in":
                asked.pop((e.job, e.part), None)
        elif e.kind == "passive":
            asked[e.job, e.part] = i, e
        elif e.kind in COPY.values():
            _, begun = busy.pop(engine, (-1, None))
            if begun is None or (begun.job, begun.buffer, begun.part, COPY[begun.kind]) != (
                e.job, e.buffer, e.part, e.kind,
            ):  # fmt: skip
                raise objection("link", f"no such copy of part {e.part} of buffer {e.buffer} is under way", i, e)
            if e.ns - begun.ns != takes[engine]:
                told = f"the copy of {e.size} bytes took {e.ns - begun.ns} ns, not {takes[engine]}"
                raise objection("duration", told, i, e)
    for i, e in busy.values():
        raise objection("link", "the copy never ends", i, e)
    for i, e in asked.values():
        raise objection("link", f"the copy-in of part {e.part} of buffer {e.buffer} never begins", i, e)


def _copy_ns(i: int, e: LoggedEvent, machine: Machine, given: Mapping[str, Iterator[int]]) -> int:
    """How long the copy takes that begins."""
    if e.job not in given:
        link = machine.into if e.kind == "in" else machine.out
        return int(link.copy_ns(np.array([e.size]))[0])
    ns = next(given[e.job], None)
    if ns is None:
        raise objection("link", "the job makes more copies than durations are given for", i, e)
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
    for i, e in enumerate(log):
        if e.kind not in RUN and e.kind not in RUN.values():
            continue
        if begun:
            progress += (e.ns - now) / (1 + rate * (len(begun) - 1))
        if e.kind in RUN:
            changes += e.ns != now
            begun[e.job] = progress, changes
        else:
            start, before = begun.pop(e.job)
            rounding = 1 + changes - before if rate else 0
            each = durations[e.job]
            done, duration = progress - start, int(each[e.op] if each.ndim == 1 else each[e.iteration, e.op])
            if abs(done - duration) > rounding:
                raise objection("duration", f"op {e.op} did work of {float(done):g} ns, it takes {duration}", i, e)
            changes += e.ns != now
        now = e.ns
