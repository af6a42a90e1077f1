"""Kernels of several streams of one trace that share the GPU: against a run in steps of a nanosecond, and timelines."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

from gpumem import check
from gpumem.jobs import Job, Policy, simulate_jobs, unmanaged
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator import _sharing_loop as _sharing
from gpumem.simulator.hazards import hazards
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import rates, share
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COMPUTE, RECOMPUTE, SYNC, Buffers, Csr, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.strategies import traces

SLOWDOWNS = (0.3, 0.5, 1.0, 2.25)


def streams(*work: list[int]) -> Trace:
    """Streams that share nothing."""
    ops = [(s, ns) for s, row in enumerate(work) for ns in row]
    nothing: list[list[int]] = [[] for _ in ops]
    names = [f"compute{s}" for s in range(len(work))]
    row = Ops.make(nothing, nothing, duration=[ns for _, ns in ops], stream=[s for s, _ in ops], streams=names)
    return Trace(Buffers.make([1], [0], [len(ops)]), row)


def fenced(trace: Trace) -> Trace:
    """All that is no copy waits for the last such op of the iteration before, which waits for all of them."""
    b, o, n = trace.buffers, trace.ops, trace.n
    mine = np.flatnonzero(~o.copies).tolist()
    reads, writes = (
        [row + [len(b)] * (i in of) for i, row in enumerate(rows.tolist())]
        for rows, of in ((o.reads, mine), (o.writes, mine[-1:]))
    )
    columns = ([*old.tolist(), new] for old, new in ((b.size, 1), (b.start, 0), (b.end, n)))
    more = {"persistent": [*b.persistent.tolist(), True], "host": [*b.host.tolist(), False]}
    return Trace(Buffers.make(*columns, **more), replace(o, reads=Csr.of(reads), writes=Csr.of(writes)))


@dataclass(frozen=True)
class Case:
    """What is shared, and how."""

    trace: Trace
    machine: Machine
    slowdown: float
    placement: Placement | None = None
    sync: bool | None = None

    def clock(self) -> _sharing.SharedClock:
        trace, machine = self.trace, self.machine
        hosts = Hosts.make(trace, machine, self.sync)
        _, rate = rates(self.slowdown, len(trace.ops.streams))
        return _sharing.SharedClock(_sharing.Streams.make(trace, machine, rate, self.placement, hosts), hosts)

    def shared(self) -> tuple[Trace, Timeline]:
        shared = share(self.trace, self.machine, self.slowdown, self.placement, sync=self.sync)
        return shared, simulate(shared, self.machine, self.placement, sync=self.sync)

    def check(self, iterations: int = 5) -> None:
        clock, naive = self.clock(), Naive(self, iterations)
        for k in range(iterations):
            start, end = clock.advance()
            want = naive.iteration(k)
            assert (start.tolist(), end.tolist()) == want, f"iteration {k}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    trace = draw(traces(max_ops=8, streams=3, hosts=draw(st.sampled_from([0, 2]))))
    role = trace.ops.role.copy()
    for i in draw(st.lists(st.integers(0, trace.n - 1), max_size=3)):
        role[i] = draw(st.sampled_from([SYNC, RECOMPUTE])) if role[i] == COMPUTE else role[i]
    duration = np.where(role == SYNC, -1, trace.ops.duration)
    trace = replace(trace, ops=replace(trace.ops, role=role, duration=duration))
    machine = tiny_machine(duplex=draw(st.booleans()))
    if draw(st.booleans()):
        machine = machine.with_(host_ns=draw(st.sampled_from([2, 9])), copy_host_ns=draw(st.sampled_from([0, 3])))
    placement = best_fit(trace, alignment=1) if draw(st.booleans()) else None
    sync = draw(st.sampled_from([None, None, False, True]))
    return Case(trace, machine, draw(st.sampled_from(SLOWDOWNS)), placement, sync)


class Naive:
    """The model in steps of a nanosecond: who can end ends, who can begin begins, then all that run progress."""

    def __init__(self, case: Case, iterations: int) -> None:
        trace, machine = case.trace, case.machine
        self.n, self.ops, self.s = trace.n, trace.ops, Fraction(str(case.slowdown))
        self.work, self.cost = machine.durations(trace).tolist(), machine.host_costs(trace).tolist()
        self.after = hazards(trace, case.placement).after.tolist()
        self.kernel = [r in (COMPUTE, RECOMPUTE) for r in trace.ops.role.tolist()]
        copies = trace.ops.copies.tolist()
        one = not machine.duplex
        self.engine = ["link" if c and one else s for c, s in zip(copies, trace.ops.stream.tolist())]
        self.ahead = 2 * len(set(self.engine))
        self.blocks, self.drains = trace.ops.blocking.tolist(), (trace.ops.blocking & trace.ops.copies).tolist()
        self.on = bool(any(self.cost) or any(self.blocks) or case.sync)
        if self.on and case.sync is not False and not all(copies):
            self.blocks[max(i for i in range(self.n) if not copies[i])] = True
        self.now, self.stop = 0, (iterations + self.ahead) * self.n
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.issued: dict[int, int] = {}
        self.left: dict[int, Fraction] = {}
        self.next = {e: self.engine.index(e) for e in set(self.engine)}

    def iteration(self, k: int) -> tuple[list[int], list[int]]:
        mine = range(k * self.n, (k + 1) * self.n)
        while not all(p in self.end for p in mine):
            self.step()
        return [self.start[p] for p in mine], [self.end[p] for p in mine]

    def step(self) -> None:
        changed = True
        while changed:
            changed = False
            for p in [p for p, left in self.left.items() if left <= 0]:
                self.end[p] = self.now
                del self.left[p]
                changed = True
            for e, p in self.next.items():
                if not any(self.engine[q % self.n] == e for q in self.left) and p < self.stop and self.may(p):
                    self.start[p], self.left[p] = self.now, Fraction(self.work[p % self.n])
                    self.next[e] = next(q for q in range(p + 1, p + self.n + 1) if self.engine[q % self.n] == e)
                    changed = True
        count = sum(self.kernel[p % self.n] for p in self.left)
        for p in self.left:
            self.left[p] -= 1 / (1 + self.s * (count - 1)) if self.kernel[p % self.n] else 1
        self.now += 1

    def may(self, p: int) -> bool:
        base = p - p % self.n
        behind = base - self.ahead * self.n
        waits = [base + y for y in self.after[p % self.n]]
        if any(y >= 0 and y not in self.end for y in [*waits, *range(behind, behind + self.n)]):
            return False
        return not self.on or self.handed(p) <= self.now

    def handed(self, p: int) -> float:
        """When an op is handed over, infinity where that is not known yet."""
        for q in range(len(self.issued), p + 1):
            host = self.ops.host[q % self.n]
            before = [r for r in range(q) if self.ops.host[r % self.n] == host]
            r = before[-1] if before else -1
            known = [0] if r < 0 else [self.end.get(r, -1) if self.blocks[r % self.n] else self.issued[r]]
            if self.drains[q % self.n]:
                known += [self.end.get(r, -1) for r in before]
            if min(known) < 0:
                return float("inf")
            self.issued[q] = max(max(known) + self.cost[q % self.n], self.issued.get(q - 1, 0))
        return self.issued[p]


@given(cases())
def test_each_iteration_is_that_in_steps_of_a_nanosecond(case: Case) -> None:
    case.check()


def progress(case: Case, line: Timeline, op: int, until: int) -> Fraction:
    """What the timeline lets an op do of its work before an instant: its rate, by who else runs, over time."""
    kernel = _sharing.kernels(case.trace)
    far = range(-20 * line.makespan, 21 * line.makespan, max(line.makespan, 1))
    others = [(s + t, e + t) for s, e in zip(line.start[kernel].tolist(), line.end[kernel].tolist()) for t in far]
    start = int(line.start[op])
    near = [(s, e) for s, e in others if s < until and e > start]
    at = sorted({start, until, *(t for pair in near for t in pair if start < t < until)})
    done = Fraction(0)
    for s, e in pairwise(at):
        count = sum(first <= s and e <= last for first, last in near)
        done += (e - s) / (1 + Fraction(str(case.slowdown)) * (count - 1))
    return done


def judge(case: Case) -> bool:
    """Hold what is shared against its timeline alone; False where its streams drift apart, so that it has none."""
    shared, line = case.shared()
    work, kernel = case.machine.durations(case.trace), _sharing.kernels(case.trace)
    if line.cycle != 1:
        return False
    took, costs = case.machine.durations(shared), case.machine.host_costs(case.trace)
    placed = {"placement": case.placement, "duplex": case.machine.duplex}
    check.timeline(case.trace, line, took, handing=costs, sync=case.sync, **placed)
    assert took[~kernel].tolist() == work[~kernel].tolist()
    for i in np.flatnonzero(kernel).tolist():
        start, end = int(line.start[i]), int(line.end[i])
        assert progress(case, line, i, end) >= work[i], f"op {i} ends before its work is done"
        assert start == end or progress(case, line, i, end - 1) < work[i], f"op {i} goes on when its work is done"
    if case.slowdown == 1:
        busy = {t % line.makespan for i in np.flatnonzero(kernel) for t in range(line.start[i], line.end[i])}
        assert 0 <= len(busy) - work[kernel].sum() < max(kernel.sum(), 1), "work is not conserved"
    return True


@given(cases())
def test_the_timeline_shows_that_each_kernel_did_its_work(case: Case) -> None:
    assert judge(replace(case, trace=fenced(case.trace), placement=None)) or case.trace.ops.copies.any()


@given(cases())
def test_so_it_does_without_a_common_instant(case: Case) -> None:
    judge(case)


@given(cases())
def test_alone_or_undisturbed_ops_take_what_they_take(case: Case) -> None:
    kernel = _sharing.kernels(case.trace)
    still = share(case.trace, case.machine, 0.0)
    one = replace(case.trace, ops=replace(case.trace.ops, stream=np.where(kernel, 0, case.trace.ops.stream)))
    for trace, shared in ((case.trace, still), (one, share(one, case.machine, case.slowdown))):
        assert case.machine.durations(shared).tolist() == case.machine.durations(trace).tolist()


@given(cases())
def test_whatever_the_regime_no_kernel_takes_more_than_beside_all_others(case: Case) -> None:
    work, took = (case.machine.durations(trace) for trace in (case.trace, case.shared()[0]))
    unit, rate = rates(case.slowdown, max(len(np.unique(case.trace.ops.stream[_sharing.kernels(case.trace)])), 1))
    assert (work <= took).all() and (took <= -(-work * unit // rate[-1])).all()


def test_pairs_of_groups_with_syncs_between() -> None:
    # slot 1: first works 30 beside 10 of second; slot 2: 10 beside 10. slowdown 1: while two run, each at half speed
    # first   [ 30, of them 10 at half speed: 40 ][ 10: 20 ]
    # second  [ 10: 20 ]                          [ 10: 20 ]
    tokens = [0, 1]
    ops = Ops.make(
        [[], [], tokens, tokens, [], [], tokens, tokens],
        [[0], [1], [0], [1], [0], [1], [0], [1]],
        duration=[30, 10, -1, -1, 10, 10, -1, -1],
        stream=[0, 1] * 4,
        streams=["first", "second"],
        role=[COMPUTE, COMPUTE, SYNC, SYNC] * 2,
    )
    trace = Trace(Buffers.make([1, 1], [0, 0], [8, 8], persistent=[True, True]), ops)
    case = Case(trace, tiny_machine(), 1.0)
    shared, line = case.shared()
    assert shared.ops.duration.tolist() == [40, 20, -1, -1, 20, 20, -1, -1]
    assert (line.start.tolist(), line.makespan) == ([0, 0, 40, 40, 40, 40, 60, 60], 60)
    assert judge(case)


def test_streams_that_share_nothing_do_not_drift_apart() -> None:
    """In the long run both do an iteration in the time of 17 ns of work: 7 beside one another, 3 alone."""
    shared = share(streams([10], [7]), tiny_machine(), 1.0)
    assert shared.ops.duration.tolist() == [17, 14]


@pytest.mark.parametrize("slowdown", [0.0, *SLOWDOWNS])
def test_two_jobs_are_two_streams(slowdown: float) -> None:
    work, machine, turns = ([100, 50, 30], [60, 0, 55, 65]), tiny_machine(), 3
    jobs = [Job(f"job{k}", streams(row), iterations=turns + 1) for k, row in enumerate(work)]
    ran = simulate_jobs(jobs, machine, 100, Policy(unmanaged), slowdown=slowdown)
    trace = streams(*work)
    clock = Case(trace, machine, slowdown).clock()
    for k in range(turns):
        _, end = clock.advance()
        assert [job.end[k] for job in ran.jobs] == [end[trace.ops.stream == s].max() for s in range(2)]


def test_what_cannot_be_shared_is_refused(machine: Machine) -> None:
    two = streams([10], [7])
    for bad in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"slowdown: {bad} is not finite and >= 0"):
            share(two, machine, bad)
    with pytest.raises(ValueError, match="no ops, a bare instance has no timeline"):
        share(Trace.from_lifetimes([1], [0], [1]), machine, 1.0)
    with pytest.raises(ValueError, match="iterations: 0 is below 1"):
        share(two, machine, 1.0, iterations=0)
    with pytest.raises(
        ValueError, match=r"slowdown: 0.123456789012345 is too fine to count exactly; give it fewer digits"
    ):
        share(streams([10**6], [10**6]), machine, 0.123456789012345)
    with pytest.raises(ValueError, match="its ops take too long to count in ns"):
        share(streams([2**51], [2**51]), machine, 1.0)


FAULTS = {
    "of three kernels that run one is forgotten": ("(then - now) * rate[count]", "(then - now) * rate[min(count, 2)]"),
    "copies slow others down": ("count += kernel[i]", "count = min(count + 1, len(rate) - 1)"),
    "a kernel ends a nanosecond early": ("now - (-left[e] // rate[count])", "now + max(left[e] // rate[count], 1)"),
    "work goes on at full speed": ("(then - now) * rate[count]", "(then - now) * unit"),
    "nobody waits": ("(ended[y] <= k) if y >= 0", "False if y >= 0"),
    "the iteration before is forgotten": ("(ended[y + n] < k)", "False"),
    "streams drift apart": ("k >= turn + window", "k >= turn + window + 1"),
    "ops start before they are issued": ("if at > now:", "if False:"),
    "a copy does not drain": ("(hosts.drains[i] and x.given[h] > 0)", "False"),
    "nothing blocks": ("x.waits[h] = hosts.blocks[i]", "pass"),
    "handing over takes no time": ("hosts.clock[h] + hosts.cost[i]", "hosts.clock[h]"),
    "the host goes on as of when it gave": ("hosts.clock[h] = now", "pass"),
}


def objects() -> bool:
    """Whether the steps of a nanosecond object to some of a hundred random cases."""

    @settings(max_examples=100, derandomize=True, database=None, phases=[Phase.generate], deadline=None)
    @given(cases())
    def judged(case: Case) -> None:
        case.check(3)

    try:
        judged()
    except (AssertionError, IndexError):
        return True
    return False


@pytest.mark.jit
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_loop_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = FAULTS[fault]
    loops = [getattr(_sharing, name) for name in ("_advance", "_hand_over", "_release")]
    source = "".join(inspect.getsource(getattr(loop, "py_func", loop)).partition("\n")[2] for loop in loops)
    assert right in source
    broken = dict(vars(_sharing))
    exec(source.replace(right, wrong), broken)
    monkeypatch.setattr(_sharing, "_advance", broken["_advance"])
    assert objects()
