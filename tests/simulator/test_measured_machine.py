"""A machine with measured op times: what they count for, what stands, what is refused, and that plans rest on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpumem
from gpumem.io import read_machine
from gpumem.simulator.machine import Machine
from gpumem.trace import COPY_IN, COPY_OUT, F64, I64, UNKNOWN, Ops, Trace

V100 = Machine.named("v100")


class Tells:
    """1,000 ns and as many as an op has operands; it cannot tell of those of one name; counts how often it is asked."""

    def __init__(self, silent: str = "", constant: float = 1000) -> None:
        self.silent, self.constant, self.asked = silent, constant, 0

    def ops_ns(self, ops: Ops, size: I64) -> F64:
        self.asked += 1
        count = np.diff(ops.reads.ptr) + np.diff(ops.writes.ptr)
        return np.where(np.array([n == self.silent for n in ops.name], bool), np.nan, self.constant + count)


def by_hand(trace: Trace, silent: str = "") -> list[int]:
    roofline = V100.durations(trace).tolist()
    count = [len(op.reads) + len(op.writes) for op in trace.ops]
    return [r if op.name == silent else 1000 + c for r, c, op in zip(roofline, count, trace.ops)]


def test_what_was_measured_counts_in_place_of_the_roofline() -> None:
    trace = gpumem.bundled("mlp3")
    assert V100.measured(Tells()).durations(trace).tolist() == by_hand(trace)
    assert V100.measured(Tells("add_.Tensor")).durations(trace).tolist() == by_hand(trace, "add_.Tensor")
    assert by_hand(trace) != by_hand(trace, "add_.Tensor") != V100.durations(trace).tolist()


def test_durations_of_the_trace_stand_and_copies_take_the_link() -> None:
    trace = gpumem.bundled("vgg16")
    took = np.full(trace.n, UNKNOWN)
    took[::3] = 777
    trace = replace(trace, ops=replace(trace.ops, duration=took))
    swapped = gpumem.autoswap(trace, V100, trace.peak_load * 70 // 100).apply(trace)
    found, plain = V100.measured(Tells()).durations(swapped), V100.durations(swapped)
    copies = (swapped.ops.role == COPY_IN) | (swapped.ops.role == COPY_OUT)
    stands = copies | (swapped.ops.duration == 777)
    assert copies.sum() > 4 and (swapped.ops.duration == 777).sum() > 90
    assert (found[stands] == plain[stands]).all() and (found[~stands] > 1000).all() and (found[~stands] < 1100).all()


def test_a_trace_is_asked_for_once() -> None:
    trace, times = gpumem.bundled("mlp3"), Tells()
    machine = V100.measured(times)
    timed = machine.timed(trace)
    assert times.asked == 1 and timed.ops.duration.tolist() == by_hand(trace)
    machine.durations(timed)
    assert times.asked == 1 and machine.timed(timed) is timed and V100.timed(trace) is trace


@pytest.mark.parametrize("bad", [-2.0, np.inf, 2.0**53])
def test_a_time_that_is_none_names_the_op(bad: float) -> None:
    with pytest.raises(ValueError, match=r"op 0: .* measured ns are not in \[0, 2\*\*53\)"):
        V100.measured(Tells(constant=bad - 0 if np.isinf(bad) else bad * 2)).durations(gpumem.bundled("mlp3"))


def test_what_tells_no_times_is_refused() -> None:
    with pytest.raises(TypeError, match="has no ops_ns"):
        V100.measured("table.jsonl")  # type: ignore[arg-type]


def test_a_plan_rests_on_what_was_measured() -> None:
    trace, times = gpumem.bundled("vgg16"), Tells()
    planned = gpumem.plan(trace, V100.measured(times), load="80%", planner="autoswap")
    assert times.asked == 1
    assert planned.before.timeline.makespan == sum(by_hand(trace))


def test_a_changed_machine_keeps_them_and_a_file_has_none(tmp_path) -> None:  # type: ignore[no-untyped-def]
    times = Tells()
    assert V100.measured(times).with_(capacity=2**30).times is times and "as measured" in repr(V100.measured(times))
    path = tmp_path / "mine.json"
    link = '{"latency_ns": 1, "ns_per_byte": 1}'
    rest = f'"name": "x", "capacity": 9, "out": {link}, "into": {link}, "flops": 1, "bandwidth": 1'
    path.write_text(f'{{{rest}, "times": null}}')
    with pytest.raises(ValueError, match="key: 'times' is unknown"):
        read_machine(path)
