"""Jobs that share a device by node groups: their log, judged by turns, barriers, data, time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf

from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.check.event_log import LoggedEvent
from gpumem.check.slot_log import LoggedGroup, LoggedPipeline, LoggedSlots, LoggedTurn, objection
from gpumem.check.slot_memory import memory
from gpumem.check.slot_time import durations as durations_of, starts
from gpumem.trace import I64, Trace

Iterations = list[list[LoggedGroup]]  # of one job: the node groups of each, by slot


@strict
def waterwave(
    log: LoggedSlots,
    traces: Mapping[str, Trace],
    capacity: int,
    durations: Mapping[str, I64],
    *,
    slowdown: float = 0.0,
    hosts: bool = False,
    events: Sequence[LoggedEvent] = (),
) -> None:
    """Check the log of jobs that run by node groups, slot by slot.

    Parameters
    ----------
    log : LoggedSlots
        Of a run that has ended, as `gpumem.jobs.waterwave.SlotLog`.
    traces : mapping from job to Trace
        One iteration of each.
    capacity : int
        Bytes that all jobs together may hold.
    durations : mapping from job to int64[n]
        Nanoseconds of each op, alone on the device.
    slowdown : float
        Of `k` kernels that run at once each progresses at the rate `1 / (1 + slowdown * (k - 1))`.
    hosts : bool
        Whether hosts take time to launch ops: then an op may start later than it could.
    events : sequence of LoggedEvent, optional
        When jobs were launched, ended iterations and left (`Outcome.log`): held against the log.

    Raises
    ------
    CheckError
        What is wrong, and with which node group.

    Notes
    -----
    Slots: a node group runs in a slot and on the stream of its turn in the pipeline in force, alone there; a job leaves
    out no turn before its last one; all that is in earlier slots has ended when a group starts. Order: iterations of a
    job follow one another, each runs each op once, and of two ops that conflict the recorded first one ends before the
    other starts. Time: ops of a stream run one after another without a break, each does its work at the speed that
    others leave it. Memory: a buffer is held from the start of its first op to the end of its last one, what crosses
    iterations as long as the job is in; the sum stays within the capacity at each instant. Where node groups have no
    ops, as on threads, their times are those of calls: slots and order are judged. O(accesses + n log n).

    Examples
    --------
    >>> from gpumem import Machine, bundled
    >>> from gpumem.jobs import Job
    >>> from gpumem.jobs.waterwave import SlotLog, simulate_together
    >>> trace, machine, log = bundled("vgg16"), Machine.named("v100"), SlotLog()
    >>> jobs = [Job("a", trace, iterations=3), Job("b", trace, iterations=2)]
    >>> out = simulate_together(jobs, machine, 640 * 2**20, slowdown=1.0, log=log)
    >>> ns = machine.durations(trace)
    >>> given = {"a": trace, "b": trace}, 640 * 2**20, {"a": ns, "b": ns}
    >>> waterwave(log, *given, slowdown=1.0, events=out.log)
    >>> _ = log.groups.pop(3)
    >>> waterwave(log, *given, slowdown=1.0)
    Traceback (most recent call last):
    gpumem.base.errors.CheckError: job 'a', iteration 0, node group 4 (slot 4, stream 1): ran behind node group 2
    """
    groups = sorted(log.groups, key=lambda run: (run.slot, run.stream))
    for run in groups:
        if run.job not in traces:
            raise objection("event", run, "there is no such job")
    slots(groups)
    runs = {job: iterations(job, groups, log.pipelines) for job in traces}
    if events:
        lives(runs, events)
    timed = [run for run in groups if run.ops]
    if not timed:
        return
    for job, trace in traces.items():
        data(trace, runs[job])
    durations_of(timed, traces, durations, slowdown=slowdown, hosts=hosts)
    if not hosts:
        starts(timed, log.pipelines, events)
    memory(runs, traces, capacity, events)


def slots(groups: Sequence[LoggedGroup]) -> None:
    """Check that a stream has one node group in a slot, and that a slot waits for all before it.

    Raises
    ------
    CheckError
        `turn`, `slot` or `time`.
    """
    over, last = 0, None  # the latest end in earlier slots, and whose
    for place, run in enumerate(groups):
        if run.end < run.start:
            raise objection("time", run, f"ends at {run.end} ns, before it starts at {run.start} ns")
        if place and (groups[place - 1].slot, groups[place - 1].stream) == (run.slot, run.stream):
            raise objection("turn", run, f"job {groups[place - 1].job!r} is there as well")
        for before in groups[max(place - 2, 0) : place]:  # two streams: what is new in earlier slots
            if before.slot < run.slot and before.end > over:
                over, last = before.end, before
        if last is not None and run.start < over:
            raise objection(
                "slot", run, f"starts at {run.start} ns, but job {last.job!r} runs in slot {last.slot} until {over} ns"
            )


def iterations(job: str, groups: Sequence[LoggedGroup], pipelines: Sequence[LoggedPipeline]) -> Iterations:
    """Check that a job's node groups run in turn, where the pipelines have them; return them by iteration.

    Raises
    ------
    CheckError
        `turn` or `order`.
    """
    by_iteration = _by_iteration(job, groups)
    for own_groups in by_iteration:
        _in_turn(own_groups, pipelines)
    for at, line in enumerate(pipelines):
        until = pipelines[at + 1].slot if at + 1 < len(pipelines) else inf
        _in_a_row([own_groups[0] for own_groups in by_iteration if line.slot <= own_groups[0].slot < until], line)
    for one, following in pairwise(by_iteration):
        if following[0].slot <= one[-1].slot:
            raise objection("order", following[0], f"iteration {one[0].iteration} has not ended")
    return by_iteration


def _by_iteration(job: str, groups: Sequence[LoggedGroup]) -> Iterations:
    """Return a job's node groups by iteration; each has its groups in order, one a slot."""
    by_iteration: Iterations = []
    for run in groups:
        if run.job != job:
            continue
        if run.iteration == len(by_iteration):
            by_iteration.append([])
        elif run.iteration != len(by_iteration) - 1:
            raise objection("order", run, f"behind iteration {len(by_iteration) - 1}")
        before = by_iteration[-1][-1] if by_iteration[-1] else None
        if run.group != len(by_iteration[-1]):
            reason = "begins the iteration" if before is None else f"ran behind node group {before.group}"
            raise objection("order", run, reason)
        if before is not None and before.slot >= run.slot:
            raise objection("turn", run, f"in one slot with node group {before.group}")
        by_iteration[-1].append(run)
    return by_iteration


def _in_turn(groups: Sequence[LoggedGroup], pipelines: Sequence[LoggedPipeline]) -> None:
    """The node groups of one iteration are all those of one turn, where that has them."""
    known = [at for at in pipelines if at.slot <= groups[0].slot]
    if not known:
        raise objection("turn", groups[0], "before the first pipeline")
    line, jobs, first = known[-1].pipeline, known[-1].jobs, known[-1].slot
    until = min((at.slot for at in pipelines if at.slot > first), default=groups[-1].slot + 1)
    late = [run for run in groups if run.slot >= until]
    if late:
        raise objection("turn", late[0], f"its iteration began before the pipeline from slot {until} on")
    turns = [turn for turn in line.turns if jobs[turn.job] == groups[0].job]
    fits = [turn for turn in turns if all(_has(turn, line.period, groups[0], run, first=first) for run in groups)]
    if not fits:
        raise objection("turn", groups[0], "the pipeline has no turn in these slots and on these streams")
    if all(len(turn.slot) != len(groups) for turn in fits):
        raise objection("order", groups[-1], f"the last of its iteration, which has {len(fits[0].slot)}")


def _in_a_row(heads: Sequence[LoggedGroup], line: LoggedPipeline) -> None:
    """A job's iterations begin in each of its turns, until it begins none any more; `heads`: their first groups."""
    for turn_number, run in enumerate(heads):
        begin = sorted(turn.slot[0] for turn in line.pipeline.turns if line.jobs[turn.job] == run.job)
        rounds, turn = divmod(turn_number, len(begin))
        slot = line.slot + rounds * line.pipeline.period + begin[turn]
        if run.slot != slot:
            raise objection("turn", run, f"the job's next turn begins in slot {slot}")


def _has(turn: LoggedTurn, period: int, head: LoggedGroup, run: LoggedGroup, first: int) -> bool:
    """Whether a node group runs where a turn has it, the iteration having begun with `head`."""
    begun, at = divmod(head.slot - first - turn.slot[0], period)
    if at or begun < 0 or run.group >= len(turn.slot):
        return False
    same: bool = turn.stream[run.group] == run.stream
    return same and run.slot - first - begun * period == turn.slot[run.group]


def data(trace: Trace, runs: Iterations) -> None:
    """Check that each iteration runs each op once, node groups op by op, and what depends on one another in order.

    Raises
    ------
    CheckError
        `order` or `dependence`.
    """
    pairs = conflicts(trace)
    for groups in runs:
        for run in groups:
            _one_by_one(run)
        when = {one.op: (one, run) for run in groups for one in run.ops}
        count = sum(len(run.ops) for run in groups)
        if sorted(when) != list(range(trace.n)) or count != trace.n:
            raise objection(
                "order", groups[-1], f"its iteration runs {count} ops, not the {trace.n} of the job, each once"
            )
        for earlier, later in pairs:
            (one, _), (other, run) = when[earlier], when[later]
            if other.start < one.end:
                starts, ends = f"op {later} starts at {other.start} ns", f"op {earlier} ends at {one.end} ns"
                reason = f"{starts}, {ends}, and both touch one buffer"
                raise objection("dependence", run, reason, earlier, later)


def _one_by_one(run: LoggedGroup) -> None:
    """The ops of a node group run one at a time, the first when it starts, the last until it ends."""
    if not run.ops or (run.start, run.end) != (run.ops[0].start, run.ops[-1].end):
        raise objection("order", run, "does not start and end with its ops")
    for one, following in pairwise(run.ops):
        if following.start < one.end:
            raise objection(
                "order", run, f"op {following.op} starts before op {one.op} has ended", one.op, following.op
            )


def conflicts(trace: Trace) -> list[tuple[int, int]]:
    """Pairs of ops of one iteration that touch one buffer, the later one or the earlier one writing it.

    The op with which a lifetime starts, and that with which it ends, count as if they wrote the buffer: its bytes are
    there in between. Pairs that follow from others are left out.
    """
    buffers, steps = trace.buffers, trace.n
    edges: dict[int, set[int]] = {op: set() for op in range(steps)}
    for buffer, (first, end) in enumerate(zip(buffers.start.tolist(), buffers.end.tolist())):
        if not trace.eternal[buffer]:
            edges[first].add(buffer)
            edges[(end - 1) % steps].add(buffer)
    last: dict[int, int] = {}  # of each buffer: the op that wrote it last
    read: dict[int, list[int]] = {}  # and those that have read it since
    pairs = []
    for op in range(steps):
        written = {*trace.ops.writes[op].tolist()} | edges[op]
        for buffer in sorted({*trace.ops.reads[op].tolist()} | written):
            pairs += [(last[buffer], op)] if buffer in last else []
            if buffer in written:
                pairs += [(reader, op) for reader in read.pop(buffer, [])]
                last[buffer] = op
            else:
                read.setdefault(buffer, []).append(op)
    return pairs


def lives(runs: Mapping[str, Iterations], events: Sequence[LoggedEvent]) -> None:
    """Check that jobs run between their launch and their end, and that iterations end when the events say so.

    Raises
    ------
    CheckError
        `life`.
    """
    for job, iterations in runs.items():
        at = {
            kind: [event for event in events if (event.job, event.kind) == (job, kind)]
            for kind in ("launch", "iteration", "leave")
        }
        reason = [(event.iteration, event.ns) for event in at["iteration"]]
        ran = [(one[-1].iteration, one[-1].end) for one in iterations]
        if reason != ran:
            wrong = next((pair for pair in zip(reason, ran) if pair[0] != pair[1]), (len(reason), len(ran)))
            raise CheckError("life", f"job {job!r}: iterations end at {wrong[0]} by the events, {wrong[1]} by the log")
        if iterations and (not at["launch"] or iterations[0][0].start < at["launch"][0].ns):
            raise objection("life", iterations[0][0], "before the job is launched")
        if iterations and (not at["leave"] or iterations[-1][-1].end > at["leave"][-1].ns):
            raise objection("life", iterations[-1][-1], "after the job has left")
