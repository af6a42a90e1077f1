"""TENSILE's schedule: plans by every oracle, the link by brute force, and what the printed pseudo-code does wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, read
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import Plan, Recompute, Swap, Times
from gpumem.swap.facts.recompute import recomputable
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.planner import most, schedule, tensile
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.nets import hill
from tests.strategies import nets, steps, tasks

RTX = Machine.named("rtx2080ti")
NEVER = Link(10**9, 1.0)  # no gap is long enough for a copy
Copy = tuple[bool, int, int]  # in?, start, ns


def copies(task: Task, found: Scheduled, machine: Machine) -> list[Copy]:
    """When the copies run, from the triggers alone."""
    times, size = Times.in_a_row(task.duration), task.trace.buffers.size
    dirty = (found.plan.carried(task.trace).out >= 0).tolist()
    made: list[Copy] = []
    for swap, (out, into), copied_out in zip(found.plan.decisions, found.delays, dirty):
        if isinstance(swap, Swap):
            buffer = size[swap.buffer : swap.buffer + 1]
            if copied_out:
                made.append((False, times.end[swap.out] + out, int(machine.out.copy_ns(buffer)[0])))
            made.append((True, times.end[swap.prefetch - 1] + into, int(machine.into.copy_ns(buffer)[0])))
    return made


def disjoint(spans: Sequence[Copy], period: int) -> bool:
    """Whether no two overlap on the circle."""
    pieces = sorted((at % period, at % period + ns) for _, at, ns in spans if ns)
    pieces += [(start + period, end + period) for start, end in pieces[:1]]
    return all(end <= next_start for (_, end), (next_start, _) in pairwise(pieces))


@given(st.data())
def test_schedules_of_several_jobs(data: st.DataObject) -> None:
    jobs = data.draw(st.lists(tasks(), min_size=1, max_size=3))
    machine = tiny_machine(duplex=data.draw(st.booleans())).with_(pinned=data.draw(st.sampled_from([0, 9, 40, 10**6])))
    options = {
        "link": data.draw(st.sampled_from(["global", "job"])),
        "rest": data.draw(st.booleans()),
        "recompute": data.draw(st.booleans()),
        "least": data.draw(st.booleans()),
        "rounds": data.draw(st.sampled_from([None, 1, 3])),
    }
    before = sum(job.trace.peak_live_bytes for job in jobs)
    capacity = data.draw(st.integers(1, max(before, 1)))
    found = schedule(jobs, machine, capacity, **options)
    host = 0
    for job, one in zip(jobs, found):
        swapped = one.plan.apply(job.trace)
        assert swapped.peak_live_bytes == one.peak
        check.data_flow(job.trace, swapped)
        host += int(swapped.live_bytes(host=True).max()) - int(job.trace.live_bytes(host=True).max())
        on_device = int((~job.trace.buffers.host).sum())
        assert len({swap.buffer for swap in one.plan.swaps}) <= math.floor(job.ratio * on_device + 1e-9)
        whole, period = copies(job, one, machine), int(job.duration.sum())
        lines = [[c for c in whole if c[0] == into] for into in (False, True)] if machine.duplex else [whole]
        assert not period or all(disjoint(line, period) for line in lines)
        assert options["recompute"] or not any(isinstance(d, Recompute) for d in one.plan.decisions)
    assert host <= machine.pinned
    if not options["least"] and before <= capacity:
        assert not any(one.plan.decisions for one in found)


@given(st.data())
def test_copies_lie_between_their_accesses(data: st.DataObject) -> None:
    job, machine = data.draw(tasks()), tiny_machine()
    (found,) = schedule([job], machine, 1, recompute=False)
    times, size = Times.in_a_row(job.duration), job.trace.buffers.size
    for swap, (out, into) in zip(found.plan.swaps, found.delays):
        at = times.end[swap.prefetch - 1] + into
        in_ns = int(machine.into.copy_ns(size[swap.buffer : swap.buffer + 1])[0])
        assert times.end[swap.after] <= times.end[swap.out] + out
        assert times.start[swap.prefetch] <= at or into == 0
        assert at + in_ns <= times.start[swap.before]


@given(st.data())
def test_swaps_alone_cost_no_time_on_two_engines(data: st.DataObject) -> None:
    job, machine = data.draw(tasks()), tiny_machine()
    trace = replace(job.trace, ops=replace(job.trace.ops, duration=job.duration))
    (found,) = schedule([Task(trace, job.duration)], machine, 1, recompute=False)
    line = simulate(found.plan.apply(trace), machine)
    assert line.makespan <= simulate(trace, machine).makespan


@given(tasks(), tasks())
def test_jobs_of_one_length_share_the_link(one: Task, other: Task) -> None:
    machine = tiny_machine(duplex=False)
    period = int(one.duration.sum())
    if period:
        scaled = other.duration * 0
        scaled[-1] = period
        jobs = [Task(one.trace, one.duration), Task(other.trace, scaled)]
        found = schedule(jobs, machine, 1, recompute=False)
        assert disjoint([c for job, f in zip(jobs, found) for c in copies(job, f, machine)], period)


def test_the_biggest_tensor_of_the_peak_goes_first(machine: Machine) -> None:
    trace = hill(20, 80, 40, 10)  # load 20 100 140 150 150 140 100 20
    assert [swap.buffer for swap in tensile(trace, machine, 149).swaps] == [1]
    both = tensile(trace, machine, 120)  # op 2 holds 140 then; buffer 1 cannot be off the device so soon, buffer 0 can
    assert sorted(swap.buffer for swap in both.swaps) == [0, 1]
    assert both.apply(trace).peak_live_bytes == 120


def test_earliest_out_and_latest_in(machine: Machine) -> None:
    trace = hill(20, 80, 40, 10)
    job = Task(trace, machine.durations(trace))
    (found,) = schedule([job], machine, 120)
    # Op 1 ends at 200: out 200..243. Buffer 0 was free to go at 100: out 100..113. Op 6 starts at 600: in 578..600.
    assert sorted(copies(job, found, machine)) == [(False, 100, 13), (False, 200, 43), (True, 578, 22), (True, 693, 7)]


def test_the_link_is_shared_by_default(machine: Machine) -> None:
    trace, half = hill(20, 80, 40, 10), tiny_machine(duplex=False)
    job = Task(trace, machine.durations(trace))
    apart = schedule([job, job], half, 1, link="job")
    assert apart[0].delays == apart[1].delays
    together = schedule([job, job], half, 1)
    assert disjoint([copy for one in together for copy in copies(job, one, half)], 800)
    assert not disjoint([copy for one in apart for copy in copies(job, one, half)], 800)


def test_a_failed_access_moves_the_copy_out_behind_it(machine: Machine) -> None:
    """Line 21 prints `latest_time` where `earliest_time` is meant: the copy out would stay where it was, for ever."""
    reads: list[list[int]] = [[], [], [0], [], [], [], [0]]
    ops = Ops.make(reads, [[0], [], [], [], [1], [], []], duration=[10, 10, 10, 30, 100, 100, 10])
    trace = Trace(Buffers.make([40, 8], [0, 4], [7, 5]), ops)  # op 2 reads buffer 0 too soon after op 0 has made it
    (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1)
    assert [(swap.after, swap.before, swap.out) for swap in found.plan.swaps] == [(2, 6, 2)]


def test_a_value_is_not_dropped_before_its_copy_out(machine: Machine) -> None:
    """In the gap before, a copy-in alone would fit; but there the host does not have the value yet."""
    reads: list[list[int]] = [[], [], [], [0], [], [], [], [], [0]]
    writes: list[list[int]] = [[0], [2], [], [], [], [1], [], [], []]
    ops = Ops.make(reads, writes, duration=[10, 15, 15, 10, 50, 50, 50, 50, 10])
    trace = Trace(Buffers.make([40, 60, 50], [0, 5, 1], [9, 6, 2]), ops)  # op 5 holds 100, op 1 holds 90
    (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1, rest=False)
    assert [(swap.after, swap.before) for swap in found.plan.swaps] == [(3, 8)]
    assert found.peak == 90


def test_the_rounds_end_where_the_peak_fits_from_the_start() -> None:
    """In algorithm 3 as printed nothing clears `recomputation_succeed` then, and the loop goes on for ever."""
    (found,) = schedule([Task(hill(20, 80, 40, 10), np.full(8, 100))], tiny_machine(), 10**6, least=True)
    assert found.peak == 120  # as far as it gets; then it ends


def test_updated_parameters_go_out_after_the_update_and_come_back_in_the_next_iteration(machine: Machine) -> None:
    ops = Ops.make([[], [0], [], [], [], [0], [], []], [[], [], [], [1], [], [0], [], []], duration=[50] * 8)
    trace = Trace(Buffers.make([40, 40], [0, 3], [8, 4], persistent=[True, False]), ops)
    (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1)
    swaps = {(swap.after, swap.before) for swap in found.plan.swaps}
    assert swaps == {(5, 9), (1, 5)}  # over the boundary, and between its uses: the host copy is still good
    assert sum(op.role == "copy_out" for op in found.plan.apply(trace).ops) == 1


def test_ratios_are_priorities(machine: Machine) -> None:
    trace = hill(20, 80, 40, 10)
    ns = machine.durations(trace)
    first, second = schedule([Task(trace, ns, 0.0), Task(trace, ns)], machine, 1)
    assert not first.plan.decisions and second.plan.swaps
    wide = Trace(Buffers.make([1] * 100, [0] * 100, [8] * 100), trace.ops)
    assert (most(Task(wide, ns, 0.29)), most(Task(wide, ns, 0.299)), most(Task(wide, ns))) == (29, 29, 100)
    (quarter,) = schedule([Task(trace, ns, 0.25)], machine, 1)
    assert [swap.buffer for swap in quarter.plan.swaps] == [1]


def test_recomputes_only_where_swaps_do_not_do() -> None:
    slow = tiny_machine().with_(pinned=0)
    trace = bundled("resnet18")
    (found,) = schedule([Task(trace, slow.durations(trace))], slow, trace.peak_live_bytes * 9 // 10)
    assert not found.plan.swaps and any(isinstance(d, Recompute) for d in found.plan.decisions)
    swapped = found.plan.apply(trace)
    assert swapped.peak_live_bytes == found.peak and (swapped.ops.role == RECOMPUTE).any()
    check.data_flow(trace, swapped)


@given(st.data())
def test_recomputations_alone(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(nets(), steps(streams=1)))
    machine = tiny_machine().with_(pinned=data.draw(st.sampled_from([0, 16, 48])), out=NEVER, into=NEVER)
    duration = np.array(data.draw(st.lists(st.integers(1, 100), min_size=trace.n, max_size=trace.n)), np.int64)
    capacity = data.draw(st.integers(1, max(trace.peak_live_bytes, 1)))
    (found,) = schedule([Task(trace, duration)], machine, capacity)
    swapped = found.plan.apply(trace)
    assert swapped.peak_live_bytes == found.peak
    check.data_flow(trace, swapped)
    assert not found.plan.swaps
    assert swapped.live_bytes(host=True).max() <= machine.pinned
    assert not any(
        trace.buffers.persistent[decision.buffer]
        for decision in found.plan.decisions
        if isinstance(decision, Recompute)
    )
    if found.plan.decisions:
        assert trace.peak_live_bytes > capacity
        dropped, n = found.plan.decisions[0], trace.n
        can = recomputable(trace, machine)
        spans, op = can.gaps, trace.peak[0]
        over = can.ok & (spans.after < op) & (op < spans.before) & ~trace.buffers.persistent[spans.buffer]
        worth = trace.buffers.size[spans.buffer] / np.maximum(can.times(duration), 1)
        chosen = (spans.buffer == dropped.buffer) & (spans.after == dropped.after)
        fits = over & (worth > worth[chosen])  # better ones were passed over: what they need beside makes a new peak
        for gap in np.flatnonzero(fits).tolist():
            row = Recompute(
                int(spans.buffer[gap]), int(spans.after[gap]), int(spans.before[gap]), int(spans.before[gap])
            )
            alone = Plan((row,), n).apply(trace)
            beside = alone.live_bytes()[alone.ops.role == RECOMPUTE].max()
            assert beside >= trace.peak_live_bytes or alone.live_bytes(host=True).max() > machine.pinned


@pytest.mark.parametrize("peak", [1, 4])
def test_a_swap_that_would_not_lower_the_peak_is_not_made(machine: Machine, peak: int) -> None:
    duration = [10, 170, 170, 170, 170, 10]
    duration[peak] = 10  # over before a copy-out can end, or too short for a copy-in behind it
    ops = Ops.make([[], [], [], [], [], [0]], [[0], [], [], [], [], []], duration=duration)
    trace = Trace(Buffers.make([40, 60], [0, peak], [6, peak + 1]), ops)
    (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1)
    assert not found.plan.decisions and found.peak == 100


def test_of_equal_tensors_that_of_the_higher_peak_goes_first(machine: Machine) -> None:
    trace = hill(20, 60, 60, 60, 60, 60)
    job = Task(trace, machine.durations(trace))
    both = schedule([job, job], machine, 2 * trace.peak_live_bytes - 100, link="job")
    assert [len(one.plan.swaps) for one in both] == [1, 1]


def test_a_source_that_is_dropped_as_well_is_made_in_scratch() -> None:
    # P (4) -> A (8, op 0) -> B (8, op 1) -> C (8, op 2); op 3 holds 20 more; backward 4, 5, 6 read C, B, A
    ops = Ops.make([[0], [1], [2], [], [3], [2], [1]], [[1], [2], [3], [4], [], [], []], duration=[10] * 7)
    buffers = Buffers.make([4, 8, 8, 8, 20], [0, 0, 1, 2, 3], [7, 7, 6, 5, 4], persistent=[1, 0, 0, 0, 0])
    trace = Trace(buffers, ops)
    (found,) = schedule([Task(trace, np.full(7, 10))], tiny_machine().with_(pinned=0), 24)
    assert {(decision.buffer, decision.at) for decision in found.plan.decisions if isinstance(decision, Recompute)} == {
        (1, 6),
        (2, 5),
        (3, 4),
    }
    again = found.plan.apply(trace)
    assert [op.of for op in again.ops if op.role == "recompute"] == [0, 1, 2, 0, 1, 0]
    assert again.peak_live_bytes == found.peak == 24  # before op 4 no more than P, two of A, B and C


def test_a_random_op_runs_again_only_if_the_host_can_keep_its_generator() -> None:
    ops = Ops.make([[0], [], [1]], [[1], [2], []], duration=[10] * 3, rng=[True, False, False])
    trace = Trace(Buffers.make([4, 8, 8], [0, 0, 1], [3, 3, 2], persistent=[True, False, False]), ops)
    for pinned, count in ((15, 0), (16, 1)):
        (found,) = schedule(
            [Task(trace, np.full(3, 10))], tiny_machine().with_(pinned=pinned, out=NEVER, into=NEVER), 12
        )
        assert len(found.plan.decisions) == count
        assert found.plan.apply(trace).live_bytes(host=True).max() == 16 * count
    both = schedule([Task(trace, np.full(3, 10))] * 2, tiny_machine().with_(pinned=16, out=NEVER, into=NEVER), 24)
    assert [len(one.plan.decisions) for one in both] == [1, 0]  # the jobs share what may be pinned


def test_parameters_are_not_recomputed() -> None:
    ops = Ops.make([[0], [], [], [1]], [[1], [2], [], []], duration=[10] * 4)
    for kept in (False, True):
        trace = Trace(Buffers.make([1, 50, 60], [0, 0, 1], [4, 4, 2], persistent=[True, kept, False]), ops)
        (found,) = schedule([Task(trace, np.full(4, 10))], tiny_machine().with_(pinned=0), 80)
        assert len(found.plan.decisions) == (not kept)


def test_the_authors_stop_when_the_peak_hardly_falls() -> None:
    wide = hill(*[20] * 6, ns=100)
    size, start, end = (
        np.append(x, y) for x, y in ((wide.buffers.size, 10**6), (wide.buffers.start, 0), (wide.buffers.end, 12))
    )
    trace = Trace(Buffers.make(size, start, end), wide.ops)  # a million bytes that no op touches
    job = Task(trace, tiny_machine().durations(trace))
    counts = [len(schedule([job], tiny_machine(), 1, rounds=r)[0].plan.swaps) for r in (None, 100, 3, 2)]
    assert counts[0] == counts[1] > counts[2] == 3 > counts[3] == 2


def test_bad_input_is_named(machine: Machine) -> None:
    trace = hill(8, 4)
    with pytest.raises(ValueError, match=r"ratio 1\.5 is not in \[0, 1\]"):
        Task(trace, np.zeros(4, np.int64), 1.5)
    with pytest.raises(ValueError, match="3 durations for 4 ops"):
        Task(trace, np.zeros(3, np.int64))
    job = Task(trace, np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="link: 'wire' is unknown; there are global, job"):
        schedule([job], machine, 1, link="wire")
    with pytest.raises(ValueError, match="accounting: 'mine' is unknown"):
        schedule([job], machine, 1, accounting="mine")
    with pytest.raises(ValueError, match="capacity: 0 bytes is below 1"):
        schedule([job], machine, 0)
    with pytest.raises(Infeasible):
        tensile(trace, machine, 3)
    with pytest.raises(NotReached, match="lets no computation wait"):
        tensile(hill(8, 9, ns=1), machine, 10)


@pytest.mark.shared
@pytest.mark.jit
@pytest.mark.parametrize(
    "path, option, value",
    [
        pytest.param(path, *option, id=f"{path.name.split('.')[0]}-{option[0]}", marks=pytest.mark.slow if late else ())
        for k, path in enumerate(shared("traces/*.json.gz"))
        for option, late in (
            (("least", True), k % 2),
            (("rest", False), k % 2 == 0),
        )  # in turn; both with the slow ones
    ],
)
def test_shared_traces_to_the_byte(path: Path, option: str, value: bool) -> None:
    trace = read(path)
    (found,) = schedule([Task(trace, RTX.durations(trace))], RTX, trace.peak_live_bytes // 2, **{option: value})
    swapped = found.plan.apply(trace)
    assert swapped.peak_live_bytes == found.peak < trace.peak_live_bytes
    check.data_flow(trace, swapped)


@given(st.floats(0, 1))
def test_a_ratio_of_the_whole_system_is_a_share_of_all_that_is_swapped(ratio: float) -> None:
    """Line 29: a job may swap one more while its share is no larger than that; a lone job has all of it.

    One more is a tensor, with all the gaps that it leaves in one try.
    """
    trace, machine = bundled("vgg16"), Machine.named("rtx2080ti")
    ns = machine.durations(trace)
    both = [Task(trace, ns), Task(trace, ns, ratio)]
    plans = [j.plan for j in schedule(both, machine, trace.peak_live_bytes * 8 // 5, ratio_of="system")]
    first, second = (len(plan.swaps) for plan in plans)
    last = max(Counter(swap.buffer for swap in plans[1].swaps).values(), default=0)
    assert second - last <= ratio * (first + second) and (ratio or not second)
    alone = [
        schedule(both[:1], machine, trace.peak_live_bytes * 4 // 5, ratio_of=of)[0].plan for of in ("job", "system")
    ]
    assert alone[0] == alone[1]
