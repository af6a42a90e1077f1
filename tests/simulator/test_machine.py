"""Machines: presets, how long ops take, and values that make no sense."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pytest import approx

import gpumem
from gpumem import simulator
from gpumem.cli.common.args import machine_of
from gpumem.io import read_machine
from gpumem.simulator.machine import GIB, PRESETS, Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.trace import COMPUTE, COPY_IN, COPY_OUT, F64, I64, RECOMPUTE, SYNC, UNKNOWN, Buffers, Ops, Trace

GTX, V100 = Machine.named("gtx1080ti"), Machine.named("v100")


def test_the_presets_are_those_that_were_asked_for() -> None:
    asked = "gtx1080ti rtx2080ti p40 p100 v100 rx5700xt a100 h100 h200 rtx3090 rtx4090"
    assert set(PRESETS) == {*asked.split()}
    for name, machine in PRESETS.items():
        assert machine.name == name
        assert Machine.named(name) is machine


PCIE = {3: (47_200, 0.0756, 9_700, 0.0823), 4: (20_000, 0.04, 9_000, 0.04), 5: (10_000, 0.0182, 8_000, 0.0182)}


@pytest.mark.parametrize(
    "name, gib, tflops, gb_s, pcie",
    [
        ("gtx1080ti", 11, 11.34, 484, 3),
        ("rtx2080ti", 11, 13.45, 616, 3),
        ("p40", 24, 11.76, 346, 3),
        ("p100", 16, 9.3, 732, 3),
        ("v100", 32, 14.0, 900, 3),
        ("rx5700xt", 8, 9.75, 448, 3),
        ("a100", 80, 19.5, 2039, 4),
        ("h100", 80, 66.9, 3350, 5),
        ("h200", 139, 66.9, 4800, 5),
        ("rtx3090", 24, 35.6, 936, 4),
        ("rtx4090", 24, 82.6, 1008, 4),
    ],
)
def test_each_preset_is_what_its_vendor_prints(name: str, gib: int, tflops: float, gb_s: float, pcie: int) -> None:
    m = PRESETS[name]
    assert (m.capacity, m.flops, m.bandwidth) == (gib * 2**30, approx(tflops * 1e12), gb_s * 1e9)
    assert (m.out.latency_ns, m.out.ns_per_byte, m.into.latency_ns, m.into.ns_per_byte) == PCIE[pcie]


def test_what_a_machine_has_unless_it_is_said() -> None:
    m = Machine("m", 100, Link(1, 1), Link(1, 1), 1.0, 1.0)
    assert (m.launch_ns, m.pinned, m.host_ns, m.copy_host_ns, m.reserved) == (5_000, 64 * 2**30, 0, 0, 0)
    assert (m.duplex, m.flops_efficiency, m.bandwidth_efficiency, m.available) == (True, 0.33, 0.75, 100)
    assert m.with_(flops_efficiency=1, bandwidth_efficiency=1, reserved=99).available == 1
    with pytest.raises(ValueError, match="reserved 100 leaves nothing of 100 bytes"):
        m.with_(reserved=100)
    for what in ("flops_efficiency", "bandwidth_efficiency"):
        with pytest.raises(ValueError, match=f"{what} 1.5 is no fraction: it is above 1"):
            m.with_(**{what: 1.5})
    assert m.with_(capacity=2**62 - 1, pinned=2**62 - 1).pinned == 2**62 - 1


def test_gtx1080ti_is_the_hardware_of_the_paper() -> None:
    assert GTX.capacity == 11 * 2**30
    assert (GTX.flops, GTX.flops_efficiency) == (11.34e12, 0.33)
    assert (GTX.bandwidth, GTX.bandwidth_efficiency) == (484e9, 0.75)
    assert GTX.launch_ns == 5_000
    assert (GTX.out.latency_ns, GTX.out.ns_per_byte) == (47_200, 0.0756)
    assert (GTX.into.latency_ns, GTX.into.ns_per_byte) == (9_700, 0.0823)
    assert GTX.duplex is True


def test_an_unknown_preset_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"machine: 'gtx' is unknown; there are gtx1080ti, rtx2080ti"):
        Machine.named("gtx")


def test_with_changes_a_copy_and_validates_it() -> None:
    slow = GTX.with_(duplex=False, launch_ns=7)
    assert (slow.duplex, slow.launch_ns, slow.flops) == (False, 7, GTX.flops)
    assert GTX.duplex is True
    with pytest.raises(ValueError, match="capacity 0 is not positive"):
        GTX.with_(capacity=0)
    with pytest.raises(ValueError, match=r"machine: 'bandwith' is unknown; .*; did you mean 'bandwidth'"):
        GTX.with_(bandwith=3e9)


# --- durations -------------------------------------------------------------------------------------------


def trace_of(role: int, *, size: int = 8, duration: int = -1, flops: float = 0, moved: float = 0) -> Trace:
    """One op of a role, between a device buffer and one of the same size on the other side."""
    reads, writes = {COPY_OUT: ([0], [1]), COPY_IN: ([1], [0])}.get(role, ([0], [0]))
    ops = Ops.make([reads], [writes], duration=[duration], flops=[flops], moved=[moved], role=[role])
    return Trace(Buffers.make([size, size], [0, 0], [1, 1], host=[False, True]), ops)


@pytest.mark.parametrize("role", [COMPUTE, COPY_OUT, COPY_IN, RECOMPUTE, SYNC])
@pytest.mark.parametrize("ns", [0, 1, 123_456])
def test_a_measured_duration_stands(role: int, ns: int) -> None:
    assert GTX.durations(trace_of(role, duration=ns, flops=1e12)).tolist() == [ns]


def test_a_copy_takes_its_latency_and_the_exact_bytes() -> None:
    assert GTX.durations(trace_of(COPY_OUT, size=26_214_400)).tolist() == [47_200 + round(0.0756 * 26_214_400)]
    assert GTX.durations(trace_of(COPY_IN, size=26_214_400)).tolist() == [9_700 + round(0.0823 * 26_214_400)]
    assert GTX.durations(trace_of(COPY_OUT, size=0)).tolist() == [47_200]
    assert GTX.durations(trace_of(COPY_IN, size=10_001)).tolist() == [10_523]  # 9700 + 823.08: not in pages or the like


def test_a_sync_takes_no_time() -> None:
    assert GTX.durations(trace_of(SYNC, flops=1e12, moved=1e12)).tolist() == [0]


def test_an_op_takes_what_bounds_it() -> None:
    compute = 5_000 + 1e9 / (11.34e12 * 0.33) * 1e9
    memory = 5_000 + 1e8 / (484e9 * 0.75) * 1e9
    for role in (COMPUTE, RECOMPUTE):
        assert GTX.durations(trace_of(role, flops=1e9)).tolist() == [round(compute)]
        assert GTX.durations(trace_of(role, flops=1e9, moved=10)).tolist() == [round(compute)]
        assert GTX.durations(trace_of(role, moved=1e8)).tolist() == [round(memory)]
        assert GTX.durations(trace_of(role, flops=1e9, moved=1e8)).tolist() == [round(max(compute, memory))]
    assert GTX.durations(trace_of(COMPUTE)).tolist() == [5_000]


@given(st.integers(0, 10**12), st.integers(0, 10**10), st.sampled_from(sorted(PRESETS)))
def test_the_roofline_is_rounded_to_the_nearest_nanosecond(flops: int, moved: int, name: str) -> None:
    m = PRESETS[name]
    rates = [
        Fraction(work) / (Fraction(rate) * Fraction(efficiency))
        for work, rate, efficiency in (
            (flops, m.flops, m.flops_efficiency),
            (moved, m.bandwidth, m.bandwidth_efficiency),
        )
    ]
    exact = Fraction(m.launch_ns) + max(rates) * 10**9
    (ns,) = m.durations(trace_of(COMPUTE, flops=flops, moved=moved)).tolist()
    assert abs(ns - exact) <= Fraction(1, 2) + Fraction(1, 1000)  # a thousandth for float64


@given(st.integers(0, 2**36), st.booleans())
def test_copies_are_rounded_to_the_nearest_nanosecond(size: int, out: bool) -> None:
    link = GTX.out if out else GTX.into
    exact = Fraction(link.latency_ns) + size * Fraction(link.ns_per_byte)
    (ns,) = GTX.durations(trace_of(COPY_OUT if out else COPY_IN, size=size)).tolist()
    assert abs(ns - exact) <= Fraction(1, 2) + Fraction(1, 1000)
    assert link.copy_ns(np.array([size])).tolist() == [ns]


def test_durations_are_int64_for_any_number_of_ops() -> None:
    assert GTX.durations(Trace.from_lifetimes([1], [0], [1])).tolist() == []
    assert GTX.durations(trace_of(COMPUTE)).dtype == np.int64


@pytest.mark.parametrize("changes", [{"flops": 1e-300}, {"flops": 5e-324}, {"flops": 1e3}, {"launch_ns": 2.0**53}])
def test_an_op_that_takes_too_long_to_count_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"op 0: 1e\+12 flops and 0 bytes take too long to count in ns"):
        GTX.with_(**changes).durations(trace_of(COMPUTE, flops=1e12))


@pytest.mark.parametrize("link", [Link(0, 1e300), Link(2.0**53, 0), Link(0, 1.5)])
def test_a_copy_that_takes_too_long_to_count_is_refused(link: Link) -> None:
    machine = GTX.with_(out=link)
    with pytest.raises(ValueError, match=r"link: a copy of 9007199254740992 bytes takes too long"):
        machine.durations(trace_of(COPY_OUT, size=2**53))


def test_ops_that_take_too_long_together_are_refused() -> None:
    ops = Ops.make([[]] * 4, [[]] * 4, flops=[2.0**22] * 4, name=["a"] * 4)
    machine = GTX.with_(flops=1.0, flops_efficiency=1.0)  # each takes 2**22 s, half of 2**53 ns
    with pytest.raises(ValueError, match=r"trace 't': its ops take too long to count in ns"):
        machine.durations(Trace(Buffers.make([], [], []), ops, name="t"))


def test_the_longest_time_that_counts_is_a_nanosecond_short_of_2_to_the_53() -> None:
    two = Ops.make([[0], [0]], [[1], [1]], role=[COPY_OUT, COPY_OUT], duration=[-1, -1])
    trace = Trace(Buffers.make([8, 8], [0, 0], [2, 2], host=[False, True]), two, name="t")
    assert Link(2.0**53 - 1, 0).copy_ns(np.array([8])).tolist() == [2**53 - 1]
    fine, late = (GTX.with_(out=Link(ns, 0), copy_host_ns=ns) for ns in (2.0**52 - 1, 2.0**52))
    assert fine.durations(trace).tolist() == fine.host_costs(trace).tolist() == [2**52 - 1] * 2
    with pytest.raises(ValueError, match="trace 't': its ops take too long to count in ns"):
        late.durations(trace)
    with pytest.raises(ValueError, match="machine 'gtx1080ti': to launch 2 ops takes too long to count in ns"):
        late.host_costs(trace)


def test_the_op_that_takes_too_long_is_named() -> None:
    with pytest.raises(ValueError, match=r"^op 0: 0 flops and 0 bytes take too long to count in ns"):
        GTX.with_(launch_ns=2.0**53).durations(trace_of(COMPUTE))
    assert GTX.with_(launch_ns=2.0**53 - 1).durations(trace_of(COMPUTE)).tolist() == [2**53 - 1]
    ops = Ops.make([[], []], [[], []], flops=[1.0, 1e12], moved=[2.0, 3.0])
    with pytest.raises(ValueError, match=r"^op 1: 1e\+12 flops and 3 bytes take too long to count in ns"):
        GTX.with_(flops=1e3).durations(Trace(Buffers.make([], [], []), ops))


def test_handing_over_a_copy_takes_its_own_time() -> None:
    machine = GTX.with_(host_ns=2.4, copy_host_ns=7.6)
    for role, ns in ((COMPUTE, 2), (RECOMPUTE, 2), (SYNC, 2), (COPY_OUT, 8), (COPY_IN, 8)):
        assert machine.host_costs(trace_of(role)).tolist() == [ns]


# --- bad values ------------------------------------------------------------------------------------------


def refused(what: str, value: float, why: str) -> pytest.RaisesExc[Exception]:
    """Bytes are whole numbers, so that nan and inf are none; elsewhere a value is out of range."""
    if what in ("capacity", "pinned") and isinstance(value, float):
        return pytest.raises(TypeError, match=rf"^Machine: {what}: {value} is a float; it must be a whole number$")
    return pytest.raises(ValueError, match=rf"^machine 'gtx1080ti': {what} {value} {why}$")


POSITIVE = ("capacity", "flops", "bandwidth", "flops_efficiency", "bandwidth_efficiency")


@pytest.mark.parametrize("what", POSITIVE)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_rates_and_capacity_are_positive_and_finite(what: str, value: float) -> None:
    with refused(what, value, "is not positive and finite"):
        GTX.with_(**{what: value})


@pytest.mark.parametrize("what", ["launch_ns", "pinned", "host_ns", "copy_host_ns"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_overheads_and_budgets_are_finite_and_not_negative(what: str, value: float) -> None:
    with refused(what, value, "is not finite and >= 0"):
        GTX.with_(**{what: value})


@pytest.mark.parametrize("what", ["capacity", "pinned"])
def test_memory_stays_below_2_to_the_62(what: str) -> None:
    with pytest.raises(ValueError, match=rf"{what} 4611686018427387904 is 2\*\*62 bytes or more"):
        GTX.with_(**{what: 2**62})


@pytest.mark.parametrize("what", ["latency_ns", "ns_per_byte"])
@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_a_link_is_finite_and_not_negative(what: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^link: {what} {value} is not finite and >= 0$"):
        Link(**{"latency_ns": 1.0, "ns_per_byte": 1.0} | {what: value})


@pytest.mark.parametrize("field, value", [("capacity", "11GiB"), ("pinned", 1.5e9), ("flops", "fast"), ("out", 3)])
def test_a_field_of_the_wrong_type_is_said_so(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^Machine: {field}: {value!r} is an? .*; it must be a"):
        GTX.with_(**{field: value})


def test_nothing_may_be_free_of_charge() -> None:
    machine = Machine("free", 1, Link(0, 0), Link(0, 0), flops=1, bandwidth=1, launch_ns=0, pinned=0)
    assert machine.durations(trace_of(COPY_IN)).tolist() == [0]


# --- from a file -----------------------------------------------------------------------------------------

FILE: dict[str, Any] = {
    "name": "mine",
    "capacity": 8 * GIB,
    "out": {"latency_ns": 100, "ns_per_byte": 0.5},
    "into": {"latency_ns": 200.5, "ns_per_byte": 0.25},
    "flops": 1e12,
    "bandwidth": 1e11,
}


def test_a_machine_may_come_from_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(FILE))
    wanted = Machine("mine", 8 * GIB, Link(100, 0.5), Link(200.5, 0.25), flops=1e12, bandwidth=1e11)
    assert machine_of(str(path)) == wanted
    path.write_text(json.dumps(FILE | {"duplex": False, "pinned": 5, "launch_ns": 1, "flops_efficiency": 1}))
    assert machine_of(str(path)) == wanted.with_(duplex=False, pinned=5, launch_ns=1, flops_efficiency=1.0)


def test_a_file_says_what_a_program_cannot_have_and_what_the_host_takes(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(FILE | {"reserved": GIB // 2, "host_ns": 5e3, "copy_host_ns": 1e4}))
    machine = machine_of(str(path))
    assert (machine.reserved, machine.available, machine.capacity) == (GIB // 2, 15 * GIB // 2, 8 * GIB)
    assert (machine.host_ns, machine.copy_host_ns) == (5e3, 1e4)
    path.write_text(json.dumps(FILE | {"reserved": 8 * GIB}))
    with pytest.raises(ValueError, match="machine 'mine': reserved 8589934592 leaves nothing of 8589934592 bytes"):
        machine_of(str(path))


def test_a_file_needs_no_suffix_and_a_preset_no_file(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text(json.dumps(FILE))
    assert machine_of(str(path)).name == "mine"
    assert machine_of("v100") is PRESETS["v100"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("[1]", r"machine: expected `object`, got `array` \(found \[1\]\)"),
        ("{}", "machine: object missing required field `name`"),
        (json.dumps(FILE | {"capacity": 1.5}), r"machine.capacity: expected `int`, got `float` \(found 1.5\)"),
        (json.dumps(FILE | {"flops": "fast"}), r'machine.flops: expected `float`, got `str` \(found "fast"\)'),
        (json.dumps(FILE | {"flops": -1}), "machine 'mine': flops -1.0 is not positive"),
        (json.dumps(FILE | {"host_ns": -5}), "machine 'mine': host_ns -5.0 is not finite and >= 0"),
        (json.dumps(FILE | {"copy_host_ns": "5us"}), r'machine.copy_host_ns: expected `float`, .*\(found "5us"\)'),
        (json.dumps(FILE | {"reserved": -1}), "machine 'mine': reserved -1 is not finite and >= 0"),
        (json.dumps(FILE | {"out": {"latency_ns": 1}}), "machine.out: object missing required field `ns_per_byte`"),
        (json.dumps(FILE | {"into": {"latency_ns": -1, "ns_per_byte": 1}}), "machine.into: link: latency_ns -1.0 is"),
        (json.dumps(FILE | {"bandwith": 1}), "machine: key: 'bandwith' is unknown; .*; did you mean 'bandwidth'"),
        (json.dumps(FILE | {"out": {"latency_ns": 1, "ns_per_byte": 1, "ns": 2}}), "machine.out: key: 'ns' is unknown"),
        (json.dumps(FILE | {"capacity": 2**62}), "capacity 4611686018427387904 is 2"),
        (json.dumps(FILE).replace("0.5", "1e400"), "machine.out.ns_per_byte: number out of range"),
        (json.dumps(FILE).replace("0.5", "NaN"), r"machine: JSON is malformed: .* \(byte \d+\) near .*NaN"),
    ],
)
def test_a_bad_file_is_one_line_with_file_place_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        machine_of(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_name_that_is_neither_preset_nor_file_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"machine: 'nonesuch' is unknown; there are gtx1080ti"):
        machine_of("nonesuch")
    with pytest.raises(ValueError, match=r"machine: 'xxx.* is unknown"):
        machine_of("x" * 5000)
    with pytest.raises(ValueError, match=r"missing.json: No such file"):
        machine_of(str(tmp_path / "missing.json"))
    with pytest.raises(ValueError, match=r"Is a directory"):
        machine_of(str(tmp_path))


def test_what_the_host_takes_is_shown_where_it_takes_any() -> None:
    p100 = Machine.named("p100")
    assert "host" not in repr(p100)
    assert repr(p100.with_(host_ns=2e5)).endswith(", host 200.00 us an op)")
    assert repr(p100.with_(copy_host_ns=5e3)).endswith(", host 5.00 us a copy)")
    assert repr(p100.with_(host_ns=2e5, copy_host_ns=5e3)).endswith(", host 200.00 us an op, 5.00 us a copy)")


def test_a_machine_is_shown_by_its_rates() -> None:
    assert repr(Machine.named("v100")) == (
        "Machine(v100: memory 32.00 GiB, compute 14 Tflop/s, bandwidth 900 GB/s, "
        "link 13.2 GB/s out and 12.2 GB/s in, pinned 64.00 GiB)"
    )
    mine = Machine("m", GIB, Link(0, 0), Link(0, 0.5), 1e12, 1e11, reserved=GIB // 2, duplex=False, pinned=GIB)
    assert repr(mine) == (
        "Machine(m: memory 1.00 GiB, 512.00 MiB of it reserved, compute 1 Tflop/s, bandwidth 100 GB/s, "
        "link free out and 2 GB/s in, one at a time, pinned 1.00 GiB)"
    )


def test_the_room_shows_what_is_public() -> None:
    assert (simulator.Machine, simulator.GIB, simulator.simulate) == (Machine, 2**30, simulate)


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
    swapped = gpumem.autoswap(trace, V100, trace.peak_live_bytes * 70 // 100).apply(trace)
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
