"""The swapping program: the optimum of all plans by brute force and simulation; bounds, time-outs, interrupts."""

from __future__ import annotations

from itertools import permutations, product
from math import inf, prod
from random import Random

import pytest

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import Plan, Swap, gaps, heuristic, ilp, least_stall, solve_ilp
from gpumem.swap.facts.limits import floor
from gpumem.trace import Buffers, Ops, Trace

GTX = Machine.named("gtx1080ti")


def small_trace(random: Random, ops: int, buffers: int) -> Trace:
    """A few buffers, some of them persistent, with two or three accesses each."""
    n = random.randint(3, ops)
    reads: list[list[int]] = [[] for _ in range(n)]
    writes: list[list[int]] = [[] for _ in range(n)]
    size, start, end, kept = [], [], [], []
    for b in range(random.randint(2, buffers)):
        persistent = random.random() < 0.25
        first, last = sorted(random.sample(range(n), 2))
        touched = {first, last}
        if last - first > 2 and random.random() < 0.3:
            touched.add(random.randrange(first + 1, last))
        if persistent:
            touched = set(random.sample(range(n), random.randint(1, 2)))
        for op in sorted(touched):
            made = not persistent and op == first
            (writes if made or random.random() < 0.25 else reads)[op].append(b)
        size.append(random.randint(1, 9))
        start.append(0 if persistent else first)
        end.append(n if persistent else last + 1)
        kept.append(persistent)
    duration = [random.randint(1, 20) for _ in range(n)]
    return Trace(Buffers.make(size, start, end, persistent=kept), Ops.make(reads, writes, duration=duration))


def small_machine(random: Random) -> Machine:
    links = [Link(random.randint(0, 3), random.choice([0.5, 1, 2])) for _ in range(2)]
    return GTX.with_(launch_ns=0, out=links[0], into=links[1], duplex=random.random() < 0.6)


def every_swap(trace: Trace) -> list[list[Swap | None]]:
    """For each gap all that a plan can say of it."""
    found, rows = gaps(trace), []
    for buffer, a, b in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        swaps = [
            Swap(buffer, a, b, release, prefetch, out)
            for release in range(a + 1, b + 1)
            for prefetch in range(release, b + 1)
            for out in range(a, release)
            if b > a + 1
        ]
        rows.append([None, *swaps])
    return rows


def brute_force(trace: Trace, machine: Machine, limit: int) -> float:
    """The shortest iteration of all plans under a memory limit, simulated."""
    best = inf
    for choice in product(*every_swap(trace)):
        for decisions in permutations(d for d in choice if d is not None):
            swapped = Plan.of(trace, decisions).apply(trace)
            if swapped.peak_live_bytes > limit:
                break  # whatever the order
            best = min(best, simulate(swapped, machine, capacity=limit).makespan)
    return best


def cases(seeds: range, plans: int, ops: int = 5, buffers: int = 4) -> list[tuple[Trace, Machine, int]]:
    found = []
    for seed in seeds:
        random = Random(seed)
        trace, machine = small_trace(random, ops, buffers), small_machine(random)
        least = floor(trace)[1]
        if 0 < least < trace.peak_live_bytes and prod(map(len, every_swap(trace))) <= plans:
            found.append((trace, machine, random.randint(least, trace.peak_live_bytes - 1)))
    return found


def same_as_brute_force(trace: Trace, machine: Machine, limit: int) -> None:
    proof = solve_ilp(trace, machine, limit, seconds=120)
    swapped = proof.plan.apply(trace)
    assert swapped.peak_live_bytes <= limit
    assert proof.status == "optimal" and proof.lower_bound == proof.makespan == brute_force(trace, machine, limit)
    line = simulate(swapped, machine, capacity=limit)
    assert line.makespan == proof.makespan
    check.timeline(swapped, line, machine.durations(swapped), capacity=limit, duplex=machine.duplex)


def test_the_optimum_of_all_plans() -> None:
    found = cases(range(60), plans=200)
    assert len(found) > 8
    for case in found:
        same_as_brute_force(*case)


@pytest.mark.slow
def test_the_optimum_of_all_plans_of_a_thousand_traces() -> None:
    found = cases(range(2_600), plans=3000)
    assert len(found) >= 1000
    for case in found:
        same_as_brute_force(*case)


def line() -> Trace:
    """Three ops in a row, of which the middle one needs all the memory."""
    ops = Ops.make([[], [], [0]], [[0], [1], []], duration=[10, 10, 10])
    return Trace(Buffers.make([8, 9], [0, 1], [3, 2]), ops)


def test_a_machine_by_hand() -> None:
    machine = GTX.with_(launch_ns=0, out=Link(0, 1.0), into=Link(0, 1.0))
    proof = solve_ilp(line(), machine, 9)  # out while nothing runs: 8 ns; back while nothing runs: 8 ns
    assert (proof.makespan, proof.lower_bound, proof.status, proof.gap) == (46, 46, "optimal", 0.0)
    assert proof.plan.decisions == (Swap(0, 0, 2, 1, 2),)


def test_of_two_copies_from_one_place_the_right_one_is_first() -> None:
    machine = GTX.with_(launch_ns=0, out=Link(0, 1.0), into=Link(3, 0.5), duplex=True)
    ops = Ops.make([[], [], [1], [0]], [[0, 1], [2], [], []], duration=[2, 17, 7, 2])
    trace = Trace(Buffers.make([7, 1, 4], [0, 0, 1], [4, 3, 2]), ops)
    proof = solve_ilp(trace, machine, 11, seconds=60)
    assert proof.makespan == proof.lower_bound == brute_force(trace, machine, 11) == 29
    assert [d.buffer for d in proof.plan.swaps] == [1, 0]  # the small one, so that op 1 may start


def test_limits_that_nothing_meets() -> None:
    with pytest.raises(Infeasible):
        ilp(line(), GTX, 8)
    with pytest.raises(NotReached, match="pinned"):
        ilp(line(), GTX.with_(pinned=7), 9)
    with pytest.raises(ValueError, match="limit: 0 bytes is below 1"):
        ilp(line(), GTX, 0)
    assert ilp(line(), GTX, 17).decisions == ()


def test_what_is_given_counts() -> None:
    trace = bundled("mlp3")
    limit = trace.peak_live_bytes * 9 // 10
    sure = least_stall(trace, GTX, limit)
    with pytest.raises(ValueError, match="start: its peak of"):
        solve_ilp(trace, GTX, limit, start=Plan.of(trace))
    with pytest.raises(ValueError, match=r"gap: 1\.0 is not in \[0, 1\)"):
        solve_ilp(trace, GTX, limit, gap=1.0)
    with pytest.raises(ValueError, match="bound: -1 is below 0"):
        solve_ilp(trace, GTX, limit, bound=-1)
    first = solve_ilp(trace, GTX, limit, gap=0.9)
    again = solve_ilp(trace, GTX, limit, start=first.plan, bound=simulate(trace, GTX).makespan + sure.stall_ns, gap=0.9)
    assert again.plan == first.plan and again.status == "optimal"
    assert again.lower_bound >= simulate(trace, GTX).makespan + sure.stall_ns


def test_without_time_there_is_the_start_and_its_gap() -> None:
    trace = bundled("mlp3")
    limit = trace.peak_live_bytes * 9 // 10
    with pytest.raises(NotReached, match="the time was up"):
        solve_ilp(trace, GTX, limit, seconds=1e-3)
    proof = solve_ilp(trace, GTX, limit, start=heuristic(trace, GTX, limit), seconds=1e-3)
    assert proof.status == "start" and 0 < proof.gap < 1
    assert proof.lower_bound >= simulate(trace, GTX).makespan


def test_an_interrupt_tells_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = bundled("mlp3")

    def stop(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpumem.swap.linear_programs._Worker.ask", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        ilp(trace, GTX, trace.peak_live_bytes * 9 // 10)
    (note,) = stopped.value.__notes__
    assert note.startswith("mlp3_b128_sgd: ") and "an iteration, at least" in note and "gap" in note
