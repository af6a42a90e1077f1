"""TENSILE's peak analysis: against the rewritten trace, and the paper's accounting beside it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.simulator.machine import Machine
from gpumem.swap.facts import LiveBytes, Times
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import nets, traces
from tests.swap.tensile.peaks import SwapTask, analyse


def three(duration: int = 10) -> Trace:
    """Buffer 0 is used by ops 0 and 5 only, buffer 1 by op 2; the last two ops use buffer 2."""
    ops = Ops.make([[], [], [1], [], [2], [0, 2]], [[0], [1], [], [2], [], []], duration=[duration] * 6)
    return Trace(Buffers.make([8, 4, 6], [0, 1, 3], [6, 3, 6]), ops)


@st.composite
def timed(draw: st.DrawFn, trace: Trace) -> Times:
    """Ops that often take longer than the copies."""
    ns = st.one_of(st.integers(60, 200), st.integers(60, 200), st.integers(0, 60))
    return Times.in_a_row(np.array(draw(st.lists(ns, min_size=trace.n, max_size=trace.n)), np.int64))


@st.composite
def swap_tasks(draw: st.DrawFn, trace: Trace, machine: Machine, times: Times) -> list[SwapTask]:
    """Copies anywhere between the two accesses of some gaps, whether or not the link has time for them."""
    found, tasks = gaps(trace), []
    out_ns, in_ns = (link.copy_ns(trace.buffers.size[found.buffer]) for link in (machine.out, machine.into))
    for k, gap in enumerate(zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist())):
        start, stop = times.end[gap[1]], times.start[gap[2]] - int(in_ns[k])
        slack = stop - start - int(out_ns[k])
        if slack < 0 or draw(st.integers(0, 3)) == 3:
            continue
        late = draw(st.one_of(st.just(0), st.integers(0, slack)))
        out = start + late
        into = stop - draw(st.one_of(st.just(0), st.integers(0, slack - late)))
        task = SwapTask.at(times, gap, (out, int(out_ns[k])), (into, int(in_ns[k])))
        if task is not None:
            tasks.append(task)
    return tasks


@given(st.data())
def test_exact_accounting_is_the_load_of_the_rewritten_trace(data: st.DataObject) -> None:
    trace, machine = data.draw(st.one_of(traces(), nets())), tiny_machine()
    times = data.draw(timed(trace))
    tasks = data.draw(swap_tasks(trace, machine, times))
    swapped = Plan(tuple(t.swap.within(trace.n) for t in tasks), trace.n).apply(trace)
    peak = analyse(trace, machine, times, tasks)
    assert peak.bytes == swapped.peak_live_bytes
    assert trace.buffers.size[peak.tensors].sum() == peak.bytes
    assert (np.diff(trace.buffers.size[peak.tensors]) <= 0).all()
    footprint = LiveBytes.of(trace)
    for t in tasks:
        footprint.leave(*t.absent(times, 0), int(trace.buffers.size[t.swap.buffer]))
    assert (footprint.peak, footprint.op) == (peak.bytes, peak.op)


@given(st.data())
def test_paper_accounting_is_never_above(data: st.DataObject) -> None:
    trace, machine = data.draw(st.one_of(traces(), nets())), tiny_machine()
    times = data.draw(timed(trace))
    tasks = data.draw(swap_tasks(trace, machine, times))
    assert (
        analyse(trace, machine, times, tasks, accounting="paper").bytes <= analyse(trace, machine, times, tasks).bytes
    )


def test_counting_a_swap_in_at_its_end_underestimates_the_peak(machine: Machine) -> None:
    ops = Ops.make([[], [0], [], [], [1], [0]], [[0], [], [], [1], [], []], duration=[10] * 6)
    trace = Trace(Buffers.make([8, 6], [0, 3], [6, 5]), ops)
    times = Times.in_a_row(machine.durations(trace))
    task = SwapTask.at(times, (0, 1, 5), (20, 7), (44, 4))  # the 8 bytes come in while op 4 holds 6 others
    assert task is not None
    assert (
        analyse(trace, machine, times, [task]).bytes == Plan((task.swap,), trace.n).apply(trace).peak_live_bytes == 14
    )
    assert analyse(trace, machine, times, [task], accounting="paper").bytes == 8


def test_the_peak_its_tensors_and_its_triggers(machine: Machine) -> None:
    trace = three()
    times = Times.in_a_row(machine.durations(trace))
    assert analyse(trace, machine, times).tensors.tolist() == [0, 2]
    task = SwapTask.at(times, (0, 0, 5), (13, 7), (46, 4))
    assert task is not None
    peak = analyse(trace, machine, times, [task])
    assert (peak.bytes, peak.op, peak.time, peak.last_access) == (14, 4, 40, 2)
    assert peak.tensors.tolist() == [0, 2]
    # The copy-out starts 3 ns after op 0 and runs into op 1; the copy-in starts 6 ns after op 3.
    assert peak.triggers == (((0, 3), (3, 6)),)
    assert (task.swap.out, task.swap.release, task.swap.prefetch) == (0, 2, 4)
