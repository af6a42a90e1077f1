"""A pipeline of node groups as one trace: two compute streams, sync ops between slots, the buffers of all jobs.

::

    slot          0           1
    stream 0  s w [ A's ops ] s w [ ...     s: all before on this stream is done     (writes this stream's token)
    stream 1  s w [ B's ops ] s w [ ...     w: all before on any stream is done      (reads every stream's token)

The tokens are buffers of no bytes, so the one ordering rule gives the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.execute.views import Launch, Views
from gpumem.jobs.waterwave.pipeline import Pipeline
from gpumem.simulator.machine import Machine
from gpumem.trace import F64, I64, SYNC, THE_HOST, UNKNOWN, Buffers, Csr, Ops, Trace, joined

STREAMS = ("compute 0", "compute 1")
TOKEN = "token"  # the kind of what orders streams


SIGNAL, WAIT = 0, 1  # what a sync op does


class _Issue(NamedTuple):
    """What is issued: an op of a turn's job, or a sync op (turn -1, op `SIGNAL` or `WAIT`)."""

    turn: I64
    op: I64  # in the order in which its job runs
    stream: I64
    slot: I64  # of the round
    lag: I64  # rounds since its turn began
    start: F64  # ns since its slot began, if both groups began at once; sync ops are below 0
    rank: I64  # order at one instant: what gives memory back comes first, so that the sum stays low; syncs by stream

    def in_order(self) -> _Issue:
        """Sort into issue order: by slot, then by start, then by rank."""
        order = np.lexsort((self.rank, self.start, self.slot))
        return _Issue._make(column[order] for column in self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CoSchedule(Shown):
    """Several jobs as one trace.

    Parameters
    ----------
    trace : Trace
        One round. `of` counts through the jobs: that of the ops of job `j` from `ops[j]` on, of its buffers from
        `buffers[j]` on.
    pipeline : Pipeline
    turn : int64[n]
        The turn of the pipeline that each op belongs to; -1 for sync ops.
    op : int64[n]
        Which op of its job's own trace it is; -1 for sync ops.
    slot : int64[n]
        The slot of the round in which it runs.
    lag : int64[n]
        How many rounds before this one its turn has begun.
    ops, buffers : tuple of int
        Where those of each job begin.
    buffer_turn, buffer : int64[B]
        Of each buffer the turn that starts it, and which buffer of its job's part it is; -1 for tokens.
    """

    trace: Trace
    pipeline: Pipeline
    turn: I64
    op: I64
    slot: I64
    lag: I64
    ops: tuple[int, ...]
    buffers: tuple[int, ...]
    buffer_turn: I64
    buffer: I64

    @property
    def job(self) -> I64:
        """The job that each op belongs to, int64[n]; -1 for sync ops."""
        return _jobs(self.pipeline, self.turn)

    def _facts(self) -> Facts:
        syncs = int((self.turn < 0).sum())
        most = {"peak": human(self.trace.peak_live_bytes), "bound": human(int(self.pipeline.bound().max()))}
        return {"": self.trace.name, "jobs": len(self.ops), "ops": self.trace.n - syncs, "sync ops": syncs, **most}

    def launch(self, launches: Sequence[Launch]) -> Launch:
        """Return one `launch` for the trace of all, made of one for each job's own trace."""

        def launch_own(op: Any, views: Views) -> Any:
            job = int(np.searchsorted(self.ops, op.of, side="right")) - 1
            own_op = replace(op, of=op.of - self.ops[job])
            return launches[job](own_op, views.renumbered(own_op, self.buffers[job]))

        return launch_own


@strict
def co_schedule(pipeline: Pipeline, machine: Machine, *, hosts: int = 1, pace: float = 1.0) -> CoSchedule:
    """Make one trace of a pipeline: a round.

    Parameters
    ----------
    pipeline : Pipeline
    machine : Machine
        Says what ops take, and so how the ops of a pair follow one another in issue order.
    hosts : int
        1: one host thread enqueues everything; 2: each stream has its own.
    pace : float
        How fast stream 1 is enqueued, in units of stream 0's pace: within a slot, ops are issued in the order in which
        they would start if both groups began at once. At one instant what gives memory back comes first.

    Returns
    -------
    CoSchedule

    Raises
    ------
    ValueError
        Neither 1 nor 2 hosts, a pace that is not above 0.

    Notes
    -----
    Before each slot every stream signals what it has done and waits for all others: four sync ops of no time and no
    bytes, asynchronous to the host. A buffer starts and ends with the same ops as in its job, so the live bytes of a
    job are unchanged. Persistent buffers that live for ever exist once, whatever the number of turns; others once a
    turn.
    O(ops + accesses).

    Examples
    --------
    >>> from gpumem import bundled
    >>> from gpumem.jobs.waterwave import partition, pipeline
    >>> machine = Machine.named("v100")
    >>> job = partition(bundled("vgg16"), machine, 100 * 2**20)
    >>> co_schedule(pipeline([job, job], 640 * 2**20), machine)
    CoSchedule(vgg16_cifar_b100 + vgg16_cifar_b100: 2 jobs, 630 ops, 40 sync ops, peak 576.44 MiB, bound 581.69 MiB)

    References
    ----------
    Shi et al., Waterwave, section 4.3.
    """
    if hosts not in (1, 2):
        raise ValueError(f"hosts: {hosts} is neither 1 nor 2")
    if not 0 < pace < np.inf:
        raise ValueError(f"pace: {pace} is not finite and above 0")
    issue = _issued(pipeline, machine, pace)
    ops, first_op = _ops(pipeline, issue, hosts)
    table, ids, first_buffer = _buffers(pipeline, issue)
    reads, writes, kept = (_touched(pipeline, issue, ids, what) for what in ("reads", "writes", "statistics"))
    trace = Trace(
        table,
        replace(ops, reads=reads, writes=writes, statistics=kept),
        name=" + ".join(part.trace.name for part in pipeline.parts),
    )
    own = np.concatenate([part.order for part in pipeline.parts] + [np.array([-1])])[_row(pipeline, issue)]
    buffer_turn, buffer = _origins(pipeline, ids, len(table))
    return CoSchedule(
        trace,
        pipeline,
        turn=issue.turn,
        op=own,
        slot=issue.slot,
        lag=issue.lag,
        ops=first_op,
        buffers=first_buffer,
        buffer_turn=buffer_turn,
        buffer=buffer,
    )


def _issued(pipeline: Pipeline, machine: Machine, pace: float) -> _Issue:
    """The issue order: slot by slot the sync ops, then the ops of its groups, merged by when they would start."""
    turns = [_of_turn(pipeline, index, machine, pace) for index in range(len(pipeline.turns))]
    return _Issue._make(map(np.concatenate, zip(_syncs(pipeline.period), *turns))).in_order()


def _syncs(period: int) -> _Issue:
    """The sync ops of each slot: both streams signal, then both wait."""
    op = np.tile([SIGNAL, SIGNAL, WAIT, WAIT], period)
    slot, stream = np.repeat(np.arange(period), 4), np.tile([0, 1], 2 * period)
    before_ops = op - 2.0
    return _Issue(np.full(len(op), -1), op, stream, slot, lag=np.zeros_like(slot), start=before_ops, rank=stream)


def _of_turn(pipeline: Pipeline, index: int, machine: Machine, pace: float) -> _Issue:
    """The ops of one turn of a pipeline."""
    turn = pipeline.turns[index]
    part = pipeline.parts[turn.job]
    ns, ops_of_group = machine.durations(part.trace), np.diff(part.cuts)
    begin = np.cumsum(ns) - ns
    stream = np.repeat(np.array(turn.stream, np.int64), ops_of_group)
    lag, slot = np.divmod(np.repeat(np.array(turn.slot, np.int64), ops_of_group), pipeline.period)
    start = (begin - np.repeat(begin[part.cuts[:-1]], ops_of_group)) / np.where(stream, pace, 1.0)
    takes_memory = np.repeat(np.arange(len(part)) < part.angs, ops_of_group).astype(np.int64)
    count = len(start)
    return _Issue(np.full(count, index), np.arange(count), stream, slot, lag=lag, start=start, rank=takes_memory)


def _row(pipeline: Pipeline, issue: _Issue) -> I64:
    """Where each op is in the columns of all jobs, one behind the other; -1 for sync ops."""
    base = np.cumsum([0, *(part.trace.n for part in pipeline.parts)])
    return np.where(issue.turn < 0, -1, issue.op + base[_jobs(pipeline, issue.turn)])


def _jobs(pipeline: Pipeline, turn: I64) -> I64:
    """The job of each turn; -1 for none."""
    return np.append([of.job for of in pipeline.turns], UNKNOWN)[turn]


def _numbered(tables: Sequence[Ops] | Sequence[Buffers]) -> tuple[list[Any], tuple[int, ...]]:
    """Let `of` count through all tables; return them, and where each begins."""
    numbered, first = list[Any](), [0]
    for table in tables:
        of = np.where(table.of < 0, table.of, table.of + first[-1])
        numbered.append(replace(table, of=of))
        first.append(max(int(of.max(initial=-1)) + 1, first[-1]))
    return numbered, tuple(first[:-1])


def _ops(pipeline: Pipeline, issue: _Issue, hosts: int) -> tuple[Ops, tuple[int, ...]]:
    """The columns of all ops but what they touch, and where those of each job begin."""
    tables, first = _numbered([part.trace.ops for part in pipeline.parts])
    ops = Ops.joined([replace(table, statistics=None) for table in tables]).take(_row(pipeline, issue))
    sync = issue.turn < 0
    name = np.array(ops.name, object)
    name[sync] = np.array(["signal", "wait"])[issue.op[sync]]
    who = (THE_HOST,) if hosts == 1 else tuple(f"{THE_HOST} {stream}" for stream in range(2))
    host = issue.stream if hosts == 2 else np.zeros(len(sync), np.int64)
    role = np.where(sync, SYNC, ops.role)
    named = replace(ops, name=tuple(name.tolist()), stream=issue.stream, streams=STREAMS, host=host, hosts=who)
    return replace(named, role=role), first


def _buffers(pipeline: Pipeline, issue: _Issue) -> tuple[Buffers, list[I64], tuple[int, ...]]:
    """The buffers of all turns, then the tokens; of each turn the ids of its job's; where those of each job begin."""
    ops, places = len(issue.turn), _places(pipeline, issue)
    all_of, first = _numbered([part.trace.buffers for part in pipeline.parts])
    ids, tables, known = [np.zeros(0, np.int64)] * len(places), list[Buffers](), 0
    for job, (part, buffers) in enumerate(zip(pipeline.parts, all_of)):
        forever = part.trace.eternal
        turns = pipeline.turns_of(job)
        eternal, mortal = np.flatnonzero(forever), np.flatnonzero(~forever)
        tables.append(
            replace(buffers.take(eternal), start=np.zeros(len(eternal), np.int64), end=np.full(len(eternal), ops))
        )
        mapped = np.cumsum(forever) - 1 + known
        known += len(eternal)
        next_places = [places[turn] for turn in turns[1:]] + [places[turns[0]] + ops]
        for turn, behind in zip(turns, next_places):
            mapped = mapped.copy()
            mapped[mortal] = np.arange(len(mortal)) + known
            ids[turn], known = mapped, known + len(mortal)
            tables.append(_during(buffers.take(mortal), np.append(places[turn], behind), ops))
    tokens = Buffers.make([0] * 2, [0] * 2, [ops] * 2, persistent=[True] * 2, kind=[TOKEN] * 2, of=[UNKNOWN] * 2)
    return Buffers.joined([*tables, tokens]), ids, first


def _origins(pipeline: Pipeline, ids: Sequence[I64], count: int) -> tuple[I64, I64]:
    """The turn that starts each of `count` buffers (the first, where it lives for ever), and its number in the job."""
    turn_of, buffer = np.full(count, UNKNOWN), np.full(count, UNKNOWN)
    for index in reversed(range(len(pipeline.turns))):
        turn_of[ids[index]], buffer[ids[index]] = index, np.arange(len(ids[index]))
    return turn_of, buffer


def _places(pipeline: Pipeline, issue: _Issue) -> list[I64]:
    """For each turn, where each op of its job comes, counted from the start of the round in which the turn begins."""
    places = []
    for turn in range(len(pipeline.turns)):
        own = np.flatnonzero(issue.turn == turn)
        place = np.empty(len(own), np.int64)
        place[issue.op[own]] = own + issue.lag[own] * len(issue.turn)
        places.append(place)
    return places


def _during(buffers: Buffers, place: I64, count: int) -> Buffers:
    """Give buffers their lifetimes in a round of `count` ops; `place`: that of each op of their turn and the next."""
    start, last = place[buffers.start], place[buffers.end - 1]
    end = start % count + last + 1 - start
    persistent = buffers.persistent & (end > count)  # the round's boundary is not the job's
    return replace(buffers, start=start % count, end=end, persistent=persistent)


def _touched(pipeline: Pipeline, issue: _Issue, ids: Sequence[I64], what: str) -> Csr:
    """What each op reads, writes or keeps statistics in, by the new ids; sync ops write their token or read all."""
    token = 1 + max(int(row.max(initial=-1)) for row in ids)
    tokens: dict[str, list[list[int]]] = {"reads": [[], [token, token + 1]], "writes": [[token], [token + 1], []]}
    which = {"reads": issue.op, "writes": np.where(issue.op, 2, issue.stream)}.get(what, 0 * issue.op)
    rows = [Csr.of(tokens.get(what, [[]]))]
    position, base = np.where(issue.turn < 0, which, issue.op), len(rows[0])
    for index, turn in enumerate(pipeline.turns):
        trace = pipeline.parts[turn.job].trace
        row = trace.statistics if what == "statistics" else getattr(trace.ops, what)
        own_turns = pipeline.turns_of(turn.job)
        # What a job touches before it starts in this turn was started by the job's turn before.
        earlier = ids[own_turns[own_turns.index(index) - 1]]
        rows.append(
            Csr(row.ptr, np.where(row.rows() < trace.buffers.start[row.idx], earlier[row.idx], ids[index][row.idx]))
        )
        position[issue.turn == index] += base
        base += trace.n
    joined_rows: Csr = joined(rows)
    return joined_rows.take(position)
