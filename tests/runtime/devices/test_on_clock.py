"""What the transparent device does, told by others: its log on the clock, plans carried out, swapping on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpumem.execute import in_units, initial
from gpumem.execute.models import MODELS
from gpumem.io import bundled
from gpumem.runtime import Adaptive, Clocked, InMemory, OnClock
from gpumem.runtime.log import LogEntry
from gpumem.runtime.trace_player import play
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.snu.on_demand import follow
from gpumem.testing import DeviceCall, Unmanaged, live_program, perform
from gpumem.trace import COMPUTE, Csr, Trace

MACHINE = replace(Machine.named("gtx1080ti"), host_ns=0)
SIMPLEX = replace(MACHINE, duplex=False)
FAST = replace(MACHINE, out=Link(1, 2.0), into=Link(3, 1.0))  # copies take about as long as the ops of random programs


def drawn(seed: int) -> tuple[tuple[DeviceCall, ...], int]:
    """A program without the ops that fail, which the clock does not run, and a limit."""
    whole = live_program(seed)
    program, native = replace(whole, calls=tuple(x for x in whole.calls if not getattr(x, "fails", ""))), Unmanaged()
    perform(program.calls, native)
    return program.calls, program.widest + (native.peak - program.widest) * (seed % 2) // 3


@pytest.mark.jit
@pytest.mark.parametrize("planner", ["heuristic", "on-demand", "autoswap"])
@pytest.mark.parametrize("seed", range(4))
def test_the_clock_logs_what_the_emulator_logs(seed: int, planner: str) -> None:
    calls, limit = drawn(seed)
    logs, seen = [], []
    for environment in (InMemory(), OnClock(MACHINE), Clocked(InMemory(), OnClock(MACHINE))):
        with Adaptive(environment, limit, planner=planner, machine=MACHINE, wait=True) as device:
            seen.append([x.tobytes() for x in perform(calls, device)])
        logs.append(list(device.log))
    emulated, clock, both = ([entry.event for entry in log] for log in logs)
    assert emulated == clock == both
    assert logs[1] == logs[2] and seen[0] == seen[2]
    assert {kind for kind, *_ in emulated} >= {"op", "out", "in", "fill", "empty"}


def spans(log: Sequence[LogEntry], rows: list[list[int]], costs: list[int], machine: Machine) -> list[tuple[int, int]]:
    """When each op and copy of a log runs, by the rules taken literally."""
    compute, link, ends, found = 0, {"out": 0, "in": 0}, {}, []
    ways = {"out": machine.out, "in": machine.into}

    def copied(way: str, size: int) -> tuple[int, int]:
        start = max(compute, link[way] if machine.duplex else max(link.values()))
        link[way] = start + int(ways[way].copy_ns(np.array([size]))[0])
        return start, link[way]

    for kind, op, what, block, size, *_ in log:
        if kind in ("out", "in"):
            found.append(copied(kind, size))
            ends[block] = found[-1][1]
        elif kind == "empty":
            compute = max(compute, ends.pop(block, 0))
        elif kind == "op":
            compute = max([compute, *(ends.pop(b, 0) for b in rows[op])])
            if what in ("write", "read"):
                span = copied("in" if what == "write" else "out", costs[op])
            else:
                span = compute, compute + costs[op]
            compute = span[1]
            found.append(span)
    return found


@pytest.mark.jit
@pytest.mark.parametrize("machine", [MACHINE, SIMPLEX, FAST], ids=["duplex", "simplex", "fast"])
@pytest.mark.parametrize("seed", range(4))
def test_the_times_of_the_log(seed: int, machine: Machine) -> None:
    """Ops in turn; a copy starts when its link and the op before it are over; ops and memory wait for their copies."""
    rows: list[list[int]] = []
    costs: list[int] = []

    def seen(op: Any, place: int) -> None:
        rows.append([*op.reads, *op.writes])
        size = device._blocks[rows[-1][0]].size
        costs.append(size if op.name in ("write", "read") else op.duration)

    calls, limit = drawn(seed)
    with Adaptive(OnClock(machine), limit, planner="heuristic", wait=True) as device:
        device.after.append(seen)
        perform(calls, device)
    entries = [(entry.start, entry.end) for entry in device.log if entry.kind in ("op", "out", "in")]
    assert spans(device.log, rows, costs, machine) == entries


@cache
def small(name: str) -> Trace:
    """A model's iteration, or a recorded one in KiB."""
    return MODELS[name](batch=4).trace if name in MODELS else in_units(bundled(name), 1024)


def plain(trace: Trace) -> Trace:
    """The same, but that nothing outlives its last op, and that ops read all they touch, in the order of the buffers.

    A plan does not know of bytes that nobody needs any more; and of the operands of one op, any was used first.
    """
    b = trace.buffers
    rows = [sorted({*pair[0], *pair[1]}) for pair in zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())]
    end = np.where(trace.eternal, b.end, b.start + np.maximum(trace.last_touch(), 0) + 1)
    return replace(trace, buffers=replace(b, end=end), ops=replace(trace.ops, reads=Csr.of(rows)))


def play_clock(trace: Trace, device: Adaptive, iterations: int) -> None:
    """Play a trace that has bytes over the boundary."""
    play(trace, None, device, iterations, state=initial(trace))


def planned_copies(trace: Trace, log: Sequence[LogEntry], begin: int, turns: int) -> list[tuple[str, int, int]]:
    """The copies of a log from op `begin` on: which way, right before which op of the iteration, bytes."""
    n = trace.n
    mine = [x for x in log if x.kind in ("out", "in") and begin <= x.op < begin + turns * n]
    return [(x.kind, (x.op - begin) % n, x.size) for x in mine]


def copies_of(swapped: Trace) -> list[tuple[str, int, int]]:
    """The same by the rewritten trace; copies out after its last op stand right before the first of the next."""
    found, before = [], 0
    n = int((swapped.ops.role == COMPUTE).sum())
    for op in swapped.ops:
        if op.role == "compute":
            before += 1
        else:
            kind = "out" if op.role == "copy_out" else "in"
            found.append((kind, before % n, int(swapped.buffers.size[op.reads[0]])))
    return sorted(found, key=lambda x: (x[1], x[0] == "in"))  # stable: outs first at each place, else as issued


@pytest.mark.jit
@pytest.mark.parametrize("planner", ["heuristic", "on-demand-nonblocking"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "residual", "transformer", "vgg16"])
def test_planned_iterations_copy_what_the_rewritten_trace_copies(name: str, planner: str) -> None:
    trace = small(name)
    with Adaptive(OnClock(MACHINE), trace.peak_live_bytes * 85 // 100, planner=planner, wait=True) as device:
        play_clock(trace, device, 12)
    begin = next(x.op for x in device.log if x.kind == "planned")
    report = device.report()
    assert report.plan is not None and report.trace is not None and report.trace.n == trace.n
    expected = copies_of(report.plan.apply(report.trace))
    assert expected and all(x.what.split()[2] == "read" for x in device.log if x.kind == "deviated")  # of the state
    assert planned_copies(report.trace, device.log, begin + trace.n, 3) == 3 * expected


@pytest.mark.jit
@pytest.mark.parametrize("part", [60, 70, 80, 90])
@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-norm", "residual", "transformer", "mlp3", "resnet18", "vgg16"])
def test_on_demand_evicts_what_the_paper_system_evicts(name: str, part: int) -> None:
    trace = plain(small(name))
    limit = trace.peak_live_bytes * part // 100
    seen = follow(trace, replace(MACHINE, pinned=2**50), limit)
    assert seen.copies_in and seen.copies_out and not seen.short
    turns, first = seen.iterations + 2, int(trace.crossing.sum())  # so many ops write what is there at first
    assert evictions(trace, limit, first, turns) == sorted(
        (int(seen.gaps.buffer[k]), int(seen.evicted[k]) % trace.n) for k in np.flatnonzero(seen.evicted >= 0)
    )


def evictions(trace: Trace, limit: int, first: int, turns: int) -> list[tuple[int, int]]:
    """What the device evicts on demand in the last iteration but one: buffers, and the ops that need the room."""
    rows = [list(dict.fromkeys(pair[0] + pair[1])) for pair in zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())]
    buffer: dict[int, int] = {}
    ops: list[Any] = []

    def before(op: Any, place: int) -> None:
        if first <= len(ops) < first + turns * trace.n:
            buffer.update(zip(dict.fromkeys([*op.reads, *op.writes]), rows[(len(ops) - first) % trace.n]))
        ops.append(op)

    with Adaptive(OnClock(MACHINE), limit, planner="on-demand") as device:
        device.before.append(before)
        play_clock(trace, device, turns)
    last = {x.block: x.op for x in device.log if x.kind == "fill"}
    begin = first + (turns - 2) * trace.n
    emptied = [x for x in device.log if x.kind == "empty" and begin <= x.op < begin + trace.n]
    return sorted((buffer[x.block], x.op - begin) for x in emptied if last[x.block] >= x.op)  # it came back
