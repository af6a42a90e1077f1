"""Programs that know nothing of plans, on the transparent device: their bytes, their limit, when they are planned."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from gpumem.runtime import Adaptive, InMemory, LiveBlock
from gpumem.simulator.machine import Machine
from gpumem.testing import Compute, LiveProgram, Look, Put, Unmanaged, live_program, perform
from tests import fake_cuda
from tests.on_fake_driver import needs_kernels

QUICK, ALL = 20, 500
MACHINE = Machine.named("gtx1080ti")
PARTS = (0, 1, 1 / 3, 2 / 3)  # of the way from what one op needs to what the program has at once


class Watched(InMemory):
    """Counts what it is given and asked for itself, op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.peak = 0

    def fill(self, storage: LiveBlock, size: int) -> None:
        assert storage.number not in self.held
        self.held[storage.number] = size
        self.peak = max(self.peak, sum(self.held.values()))
        super().fill(storage, size)

    def empty(self, storage: LiveBlock) -> None:
        del self.held[storage.number]
        super().empty(storage)

    def run(self, call: Any, blocks: Any, *rest: Any) -> Any:
        assert {block.number for block in blocks} <= self.held.keys()
        return super().run(call, blocks, *rest)


def limit_of(program: LiveProgram, seed: int, peak: int) -> int:
    return max(1, round(program.widest + PARTS[seed % 4] * (peak - program.widest)))


def play_one(seed: int) -> set[str]:
    """A program beside its native run; return the states of its iterations."""
    program, native, environment = live_program(seed), Unmanaged(), Watched()
    right = perform(program.calls, native)
    limit = limit_of(program, seed, native.peak)
    with Adaptive(
        environment, limit, planner=("heuristic", "on-demand")[seed % 5 == 4], wait=seed % 3 > 0, min_length=8
    ) as device:
        found = perform(program.calls, device)
    report = device.report()
    assert [x.tobytes() for x in found] == [x.tobytes() for x in right]
    assert environment.peak <= limit
    assert max(row.peak for row in report.iterations) == environment.peak
    assert environment.held.keys() <= {block.number for block in device._blocks.values()}
    return {row.state for row in report.iterations}


@pytest.mark.jit
@pytest.mark.parametrize("seed", range(QUICK))
def test_the_bytes_of_the_native_run_within_the_limit(seed: int) -> None:
    play_one(seed)


@pytest.mark.slow
@pytest.mark.jit
def test_500_programs() -> None:
    seen = Counter(state for seed in range(ALL) for state in play_one(seed))
    assert seen["planned"] > ALL // 5 and min(seen["on demand"], seen["native"], seen["idle"]) > ALL // 20, seen


def on_the_fake_driver(programs: int) -> Counter[bool]:
    """Programs on a device whose streams run in any legal order; with a few that no copy is waited for on."""
    needs_kernels()
    code = f"from fake_cuda import program_checks; program_checks.main({programs})"
    done = fake_cuda.run(code, memory=1 << 24, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == ""
    assert [one for one in found["right"] if not one["same"] or one["over"] > 0 or one["left"]] == []
    assert all(not one["same"] for one in found["careless"] if one["moved"])
    assert sum(one["moved"] > 0 for one in found["careless"]) > 3
    return Counter(one["planned"] for one in found["right"])


@pytest.mark.thorough
@pytest.mark.jit
def test_programs_on_the_fake_driver() -> None:
    assert on_the_fake_driver(8)[True]


@pytest.mark.slow
@pytest.mark.jit
def test_500_programs_on_the_fake_driver() -> None:
    assert on_the_fake_driver(ALL)[True] > ALL // 5


def ops(calls: Any) -> int:
    return sum(isinstance(call, Compute | Put | Look) for call in calls)


def settled(seed: int) -> tuple[LiveProgram, int]:
    """A program that repeats from the start, and the ops of a period."""
    program = live_program(seed, phases=0)
    first, period = program.steady_from, program.period
    return program, ops(program.calls[first + period : first + 2 * period])


@pytest.mark.jit
@pytest.mark.parametrize("seed", range(10))
def test_planned_within_two_periods_of_the_pattern(seed: int) -> None:
    """An iteration that has nothing to take over, a period that the others can be like, and two that are."""
    program, n = settled(seed)
    native, environment = Unmanaged(), Watched()
    right = perform(program.calls, native)
    limit = (program.widest + native.peak) // 2
    device = Adaptive(environment, limit, planner=["heuristic", "on-demand-nonblocking"], wait=True, min_length=8)
    assert [x.tobytes() for x in perform(program.calls, device)] == [x.tobytes() for x in right]
    told = [entry for entry in device.log if entry.kind in ("found", "planned", "deviated", "resumed")]
    begun = ops(program.calls[: program.steady_from])
    period = int(told[0].what.split()[0])
    assert told[0].kind == "found" and period in (n, 2 * n)  # two, where a loss outlives an iteration
    assert begun + 2 * period <= told[0].op <= begun + n + 3 * period
    trace = device.report().trace
    assert trace is not None
    reached = not all("infeasible" in note for note in device.report().notes)
    if trace.peak_live_bytes > limit and reached:
        assert told[1].kind == "planned" and told[1].op == told[0].op
    assert all(entry.kind != "deviated" or entry.op >= ops(program.calls) - len(right) for entry in told)
