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
        Whether hosts take time to hand ops over: then an op may start later than it could.
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
    durations_of(timed, traces, durations, slowdown, hosts)
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
    for k, run in enumerate(groups):
        if run.end < run.start:
            raise objection("time", run, f"ends at {run.end} ns, before it starts at {run.start} ns")
        if k and (groups[k - 1].slot, groups[k - 1].stream) == (run.slot, run.stream):
            raise objection("turn", run, f"job {groups[k - 1].job!r} is there as well")
        for before in groups[max(k - 2, 0) : k]:  # two streams: what is new in earlier slots
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
    found: Iterations = []
    for run in groups:
        if run.job != job:
            continue
        if run.iteration == len(found):
            found.append([])
        elif run.iteration != len(found) - 1:
            raise objection("order", run, f"behind iteration {len(found) - 1}")
        before = found[-1][-1] if found[-1] else None
        if run.group != len(found[-1]):
            told = "begins the iteration" if before is None else f"ran behind node group {before.group}"
            raise objection("order", run, told)
        if before is not None and before.slot >= run.slot:
            raise objection("turn", run, f"in one slot with node group {before.group}")
        found[-1].append(run)
    for mine in found:
        _in_turn(mine, pipelines)
    for at, line in enumerate(pipelines):
        until = pipelines[at + 1].slot if at + 1 < len(pipelines) else inf
        _in_a_row([mine[0] for mine in found if line.slot <= mine[0].slot < until], line)
    for one, following in pairwise(found):
        if following[0].slot <= one[-1].slot:
            raise objection("order", following[0], f"iteration {one[0].iteration} has not ended")
    return found


def _in_turn(mine: Sequence[LoggedGroup], pipelines: Sequence[LoggedPipeline]) -> None:
    """The node groups of one iteration are all those of one turn, where that has them."""
    known = [at for at in pipelines if at.slot <= mine[0].slot]
    if not known:
        raise objection("turn", mine[0], "before the first pipeline")
    line, jobs, first = known[-1].pipeline, known[-1].jobs, known[-1].slot
    until = min((at.slot for at in pipelines if at.slot > first), default=mine[-1].slot + 1)
    late = [run for run in mine if run.slot >= until]
    if late:
        raise objection("turn", late[0], f"its iteration began before the pipeline from slot {until} on")
    turns = [turn for turn in line.turns if jobs[turn.job] == mine[0].job]
    fits = [turn for turn in turns if all(_has(turn, line.period, mine[0], run, first) for run in mine)]
    if not fits:
        raise objection("turn", mine[0], "the pipeline has no turn in these slots and on these streams")
    if all(len(turn.slot) != len(mine) for turn in fits):
        raise objection("order", mine[-1], f"the last of its iteration, which has {len(fits[0].slot)}")


def _in_a_row(heads: Sequence[LoggedGroup], line: LoggedPipeline) -> None:
    """A job's iterations begin in each of its turns, until it begins none any more; `heads`: their first groups."""
    for k, run in enumerate(heads):
        begin = sorted(turn.slot[0] for turn in line.pipeline.turns if line.jobs[turn.job] == run.job)
        rounds, turn = divmod(k, len(begin))
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
    for mine in runs:
        for run in mine:
            _one_by_one(run)
        when = {one.op: (one, run) for run in mine for one in run.ops}
        count = sum(len(run.ops) for run in mine)
        if sorted(when) != list(range(trace.n)) or count != trace.n:
            raise objection(
                "order", mine[-1], f"its iteration runs {count} ops, not the {trace.n} of the job, each once"
            )
        for x, y in pairs:
            (one, _), (other, run) = when[x], when[y]
            if other.start < one.end:
                told = f"op {y} starts at {other.start} ns, op {x} ends at {one.end} ns, and both touch one buffer"
                raise objection("dependence", run, told, x, y)


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
    b, n = trace.buffers, trace.n
    edges: dict[int, set[int]] = {i: set() for i in range(n)}
    for x, (first, end) in enumerate(zip(b.start.tolist(), b.end.tolist())):
        if not trace.eternal[x]:
            edges[first].add(x)
            edges[(end - 1) % n].add(x)
    last: dict[int, int] = {}  # of each buffer: the op that wrote it last
    read: dict[int, list[int]] = {}  # and those that have read it since
    found = []
    for i in range(n):
        written = {*trace.ops.writes[i].tolist()} | edges[i]
        for x in sorted({*trace.ops.reads[i].tolist()} | written):
            found += [(last[x], i)] if x in last else []
            if x in written:
                found += [(y, i) for y in read.pop(x, [])]
                last[x] = i
            else:
                read.setdefault(x, []).append(i)
    return found


def lives(runs: Mapping[str, Iterations], events: Sequence[LoggedEvent]) -> None:
    """Check that jobs run between their launch and their end, and that iterations end when the events say so.

    Raises
    ------
    CheckError
        `life`.
    """
    for job, mine in runs.items():
        at = {kind: [e for e in events if (e.job, e.kind) == (job, kind)] for kind in ("launch", "iteration", "leave")}
        told = [(e.iteration, e.ns) for e in at["iteration"]]
        ran = [(one[-1].iteration, one[-1].end) for one in mine]
        if told != ran:
            wrong = next((pair for pair in zip(told, ran) if pair[0] != pair[1]), (len(told), len(ran)))
            raise CheckError("life", f"job {job!r}: iterations end at {wrong[0]} by the events, {wrong[1]} by the log")
        if mine and (not at["launch"] or mine[0][0].start < at["launch"][0].ns):
            raise objection("life", mine[0][0], "before the job is launched")
        if mine and (not at["leave"] or mine[-1][-1].end > at["leave"][-1].ns):
            raise objection("life", mine[-1][-1], "after the job has left")
