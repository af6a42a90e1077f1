"""Logs of jobs that run by node groups: right ones pass, simulated and of threads; wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, strategies as st

from gpumem import Machine, bundled, check
from gpumem.base.errors import CheckError
from gpumem.check.waterwave import conflicts
from gpumem.io import BUNDLED, read
from gpumem.jobs import Job, Outcome, verify
from gpumem.jobs.waterwave import (
    SHARING_POLICIES,
    GroupRun,
    PipelineExecutor,
    SlotLog,
    pipeline,
    simulate_together,
    waterwave,
)
from gpumem.jobs.waterwave.round_clock import RoundClock
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import objects, shared
from tests.jobs.waterwave.jobs_together import MACHINE, made
from tests.strategies import nets, steps

SLOW = 0.75


@dataclass
class Ran:
    """A run that was simulated, and what it is judged by."""

    jobs: Sequence[Job]
    limit: int
    out: Outcome
    log: SlotLog
    slowdown: float
    machine: Machine = MACHINE

    @classmethod
    def of(cls, jobs: Sequence[Job], limit: int, way: Callable = waterwave, slowdown: float = SLOW, **options) -> Ran:
        log, machine = SlotLog(), options.pop("machine", MACHINE)
        out = simulate_together(jobs, machine, limit, way, slowdown=slowdown, log=log, **options)
        return cls(jobs, limit, out, log, slowdown, machine)

    def judge(self, groups: Sequence[GroupRun] | None = None, events: bool = True, **options) -> None:
        traces = {job.name: job.trace for job in self.jobs}
        ns = {name: self.machine.durations(trace) for name, trace in traces.items()}
        log = self.log if groups is None else SlotLog(list(groups), self.log.pipelines)
        told = {"slowdown": self.slowdown, "events": self.out.log if events else ()} | options
        check.waterwave(log, traces, told.pop("capacity", self.limit), ns, **told)


def moved(run: GroupRun, ns: int) -> GroupRun:
    """A node group, `ns` later."""
    ops = tuple(one._replace(start=one.start + ns, end=one.end + ns) for one in run.ops)
    return replace(run, start=run.start + ns, end=run.end + ns, ops=ops)


@st.composite
def runs(draw: st.DrawFn) -> Ran:
    """Jobs that come and go, by any of the ways, at any limit."""
    rows = draw(
        st.lists(
            st.tuples(st.one_of(nets(), steps(streams=1)), st.integers(0, 60_000), st.integers(1, 4)),
            min_size=1,
            max_size=3,
        )
    )
    jobs = [Job(str(k), trace, arrival, count) for k, (trace, arrival, count) in enumerate(rows)]
    limit = draw(st.integers(1, 1 + sum(job.trace.peak_live_bytes for job in jobs)))
    way = draw(st.sampled_from([*SHARING_POLICIES]))
    weighted = way in ("waterwave", "temporal") and draw(st.booleans())
    weights = [draw(st.integers(1, 3)) for _ in jobs] if weighted else None
    return Ran.of(jobs, limit, SHARING_POLICIES[way], draw(st.sampled_from([0.0, 0.5, 0.75, 1.0])), weights=weights)


@given(runs())
def test_whatever_jobs_do_their_log_is_right(ran: Ran):
    ran.judge()
    ran.judge(events=False)


@pytest.mark.slow
@pytest.mark.parametrize("way", SHARING_POLICIES)
@pytest.mark.parametrize("path", [*map(str, shared("traces/*.json.gz")), *BUNDLED])
def test_two_of_each_recorded_job(path: str, way: str):
    trace = bundled(path) if path in BUNDLED else read(path)
    jobs = [Job("a", trace, iterations=3), Job("b", trace, iterations=2)]
    Ran.of(jobs, int(1.3 * trace.peak_live_bytes), SHARING_POLICIES[way]).judge()


@given(runs(), st.data())
def test_a_log_that_was_changed_is_refused(ran: Ran, data: st.DataObject):
    groups = ran.log.groups
    assume(len(groups) > 1)
    at = data.draw(st.integers(0, len(groups) - 1))
    one, others = groups[at], groups[:at] + groups[at + 1 :]
    other = data.draw(st.sampled_from(others))
    wrong = {
        "drop": others,
        "twice": [*groups, one],
        "iteration": [*others, replace(one, iteration=one.iteration + 1)],
        "group": [*others, replace(one, group=one.group + 1)],
        "stream": [*others, replace(one, stream=1 - one.stream)],
        "slot": [*others, replace(one, slot=one.slot + 1)],
        "earlier": [*others, moved(one, -1)],
        "later": [*others, moved(one, 1)],
        "op": [*others, replace(one, ops=one.ops[1:])],
        "longer": [*others, replace(one, end=one.end + 2, ops=(*one.ops[:-1], one.ops[-1]._replace(end=one.end + 2)))],
    }
    if one.job != other.job or (one.start, one.end) != (other.start, other.end):
        wrong["swap"] = [
            *(run for run in groups if run not in (one, other)),
            replace(one, slot=other.slot, stream=other.stream),
            replace(other, slot=one.slot, stream=one.stream),
        ]
    for kind, changed in wrong.items():
        with pytest.raises(CheckError):
            ran.judge(changed)
            pytest.fail(f"{kind}: nothing is said of {one}")


@pytest.fixture(scope="module")
def two() -> Ran:
    """Two jobs in pairs of node groups, three iterations and two."""
    trace = bundled("vgg16")
    jobs = [Job("a", trace, iterations=3), Job("b", trace, iterations=2)]
    return Ran.of(jobs, int(1.5 * trace.peak_live_bytes))


def find(ran: Ran, **want: object) -> tuple[GroupRun, list[GroupRun]]:
    """The first node group that is such, and the others."""
    k = next(k for k, run in enumerate(ran.log.groups) if all(getattr(run, key) == v for key, v in want.items()))
    return ran.log.groups[k], ran.log.groups[:k] + ran.log.groups[k + 1 :]


Change = Callable[[GroupRun], GroupRun]
BROKEN: Mapping[str, tuple[str, str, Change]] = {
    "job": ("event", "there is no such job", lambda g: replace(g, job="c")),
    "backwards": ("time", "before it starts", lambda g: replace(g, end=g.start - 1)),
    "early": ("slot", "but job .* runs in slot", lambda g: moved(g, -(10**6))),
    "late": ("slot", "runs in slot", lambda g: moved(g, 10**9)),
    "other stream": ("turn", "no turn in these slots|is there as well", lambda g: replace(g, stream=1 - g.stream)),
    "group": ("order", "node group", lambda g: replace(g, group=g.group + 1)),
    "iteration": ("order", "behind iteration", lambda g: replace(g, iteration=g.iteration + 2)),
    "no op": ("order", "314 ops, not the 315", lambda g: replace(g, start=g.ops[1].start, ops=g.ops[1:])),
    "op twice": ("order", "316 ops, not the 315", lambda g: replace(g, ops=(*g.ops, g.ops[-1]._replace(start=g.end)))),
    "edges": ("order", "does not start and end with its ops", lambda g: replace(g, start=g.start + 1)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_node_group_that_is_wrong_is_named(two: Ran, kind: str):
    rule, why, change = BROKEN[kind]
    one, others = find(two, job="b", iteration=1, group=2)
    two.judge()
    with objects(rule, why):
        two.judge([*others, change(one)])


def test_ops_that_overlap_or_change_places_are_named(two: Ran):
    one, others = find(two, job="b", iteration=1, group=2)
    first, second, *rest = one.ops
    overlap = replace(one, ops=(first, second._replace(start=first.end - 1), *rest))
    with objects("order", f"op {second.op} starts before op {first.op} has ended"):
        two.judge([*others, overlap])
    ops = list(one.ops)
    x, y = next((x, y) for x, y in pairwise(range(len(ops))) if (ops[x].op, ops[y].op) in conflicts(two.jobs[1].trace))
    ops[x], ops[y] = ops[x]._replace(op=ops[y].op), ops[y]._replace(op=ops[x].op)
    with objects("dependence", f"op {ops[x].op} starts at"):
        two.judge([*others, replace(one, ops=tuple(ops))])


def test_what_takes_too_long_stands_still_or_is_too_much_is_named(two: Ran):
    with objects("duration", "did work of"):
        two.judge(slowdown=0.5)
    with objects("capacity", f"the capacity is {two.limit // 2}"):
        two.judge(capacity=two.limit // 2)
    peak = max(capacity for capacity in range(two.limit // 2, two.limit, 2**24) if not _fits(two, capacity))
    two.judge(capacity=peak + 2**24)  # by its own account more than half of the limit is held, and not all of it
    after = [moved(run, 7) if run.slot > 3 else run for run in two.log.groups]
    with objects("start", "starts at .* its slot begins at"):
        two.judge(after, events=False)
    two.judge(after, events=False, hosts=True)


def _fits(ran: Ran, capacity: int) -> bool:
    try:
        ran.judge(capacity=capacity)
    except CheckError:
        return False
    return True


def test_the_events_have_the_same_iterations(two: Ran):
    gone = replace(
        two, out=replace(two.out, log=tuple(e for e in two.out.log if (e.kind, e.iteration) != ("iteration", 1)))
    )
    with objects("life", "job 'a': iterations end at .* by the events"):
        gone.judge()
    for kind, told in (("launch", "before the job is launched"), ("leave", "after the job has left")):
        out = replace(two.out, log=tuple(e for e in two.out.log if e.kind != kind))
        with objects("life", told):
            replace(two, out=out).judge()
    last = [run for run in two.log.groups if (run.job, run.iteration) != ("b", 1)]
    with objects("life", "job 'b'"):
        two.judge(last)


def test_a_turn_belongs_to_one_pipeline():
    trace = bundled("vgg16")
    ran = Ran.of([Job("a", trace, iterations=6), Job("b", trace, 40_000_000, 2)], int(1.5 * trace.peak_live_bytes))
    assert len(ran.log.pipelines) == 3
    ran.judge()
    first, second, third = ran.log.pipelines
    alone = SlotLog(ran.log.groups, [first, replace(second, pipeline=first.pipeline, jobs=("b",)), third])
    with objects("turn", "the pipeline has no turn"):
        replace(ran, log=alone).judge()
    with objects("turn", "before the first pipeline"):
        replace(ran, log=SlotLog(ran.log.groups, ran.log.pipelines[1:])).judge()
    early = SlotLog(ran.log.groups, [first, replace(second, slot=second.slot - 1), third])
    with objects("turn", "its iteration began before the pipeline from slot"):
        replace(ran, log=early).judge()


def test_hosts_that_take_time():
    trace = bundled("vgg16")
    jobs = [Job("a", trace, iterations=3), Job("b", trace, iterations=2)]
    slow = MACHINE.with_(host_ns=200_000.0)
    ran = Ran.of(jobs, int(1.5 * trace.peak_live_bytes), machine=slow)
    ran.judge(hosts=True)
    with objects("start", "starts at"):
        ran.judge()


@pytest.mark.parametrize("way", SHARING_POLICIES)
def test_rounds_of_any_pipeline_are_judged(way: str, monkeypatch: pytest.MonkeyPatch):
    line = SHARING_POLICIES[way]([bundled("vgg16"), bundled("mlp3")], MACHINE)
    assert str(verify.rounds(line, MACHINE, SLOW, hosts=2)) == "checked: waterwave"
    monkeypatch.setattr(RoundClock, "runs", lambda *given, runs=RoundClock.runs: list(runs(*given))[1:])
    with pytest.raises(RuntimeError, match="the result failed its own check"):
        verify.rounds(line, MACHINE, SLOW)


def test_threads_fill_the_same_log():
    parts, log = dict(zip("abc", made([(5, 3), (4, 2), (3, 1)]))), SlotLog()
    executor = PipelineExecutor(
        lambda jobs: pipeline([parts[job] for job in jobs]),
        lambda job, group, stream: (
            executor.join("c", 3) if (job, group, executor.jobs) == ("a", 2, ("a", "b")) else None
        ),
        log=log,
        timeout=20,
    )
    executor.join("a", 6)
    executor.join("b", 4)
    executor.run()
    executor.join("a", 2)  # comes back: its iterations are counted on
    executor.run()
    traces = {name: part.trace for name, part in parts.items()}
    assert {name: 1 + max(run.iteration for run in log.groups if run.job == name) for name in parts}["a"] == 8
    given = traces, 2**40, {}
    check.waterwave(log, *given)
    last = max(range(len(log.groups)), key=lambda k: log.groups[k].slot)
    for at in (0, last):
        with pytest.raises(CheckError):
            check.waterwave(SlotLog(log.groups[:at] + log.groups[at + 1 :], log.pipelines), *given)
    early = [
        replace(run, start=run.start - 10**10, end=run.end - 10**10) if k == last else run
        for k, run in enumerate(log.groups)
    ]
    with objects("slot", "runs in slot"):
        check.waterwave(SlotLog(early, log.pipelines), *given)


def test_ops_conflict_where_one_of_them_writes_or_ends_a_lifetime():
    ops = Ops.make([[], [0], [0], []], [[0], [], [], [0]], duration=[1] * 4)
    kept = Trace(Buffers.make([8], [0], [4], persistent=[True]), ops)
    assert conflicts(kept) == [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]
    idle = Ops.make([[]] * 4, [[]] * 4, duration=[1] * 4)
    assert conflicts(Trace(Buffers.make([8, 8], [0, 2], [3, 6]), idle)) == [(0, 2), (1, 2)]
