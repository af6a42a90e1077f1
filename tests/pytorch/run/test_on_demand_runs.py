"""Whole runs on demand by DTR's rule: the bits of a bare run, within the limit, whatever is dropped on the way."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gpumem.runtime.residency.environment import Where
from gpumem.simulator.machine import Link
from gpumem.swap import Plan, Recompute
from gpumem.testing import plans
from gpumem.torch import managed, record
from gpumem.torch.run.limit_mode import LimitMode
from gpumem.torch.run.managed import Managed
from gpumem.torch.run.recompute import RecordedCall
from tests.pytorch.bits import at_least
from tests.pytorch.managing import HOW, Lesson, least, taught, trace_of
from tests.pytorch.programs import WHAT
from tests.pytorch.random_programs import PROGRAMS, Program, most, run as trained, unlike
from tests.pytorch.run.test_random_programs import DRAWN
from tests.pytorch.run.test_random_steps import FEWER, HAPPENS, LESSONS, LONG, PROGRAM, Programs, same
from tests.pytorch.small_runs import KIB, QUICKER, SLOW, demanded, dropped

DTR: dict[str, Any] = {"on_demand": "dtr", "machine": SLOW}
STAYS: dict[str, Any] = {**DTR, "boundary": "told"}  # on demand: nobody tells, so it is recorded for ever
NEVER = SLOW.with_(out=Link(1e9, 0), into=Link(1e9, 0))  # a copy, if there is another way
PERCENT = st.sampled_from([90, 60, 40])
MACHINES = st.sampled_from([SLOW, QUICKER])


def part(trace: Any, percent: int) -> int:
    """So much of a trace's peak, or what its largest op takes."""
    return max(trace.peak_live_bytes * percent // 100, least(trace)[0])


def again(run: Any) -> int:
    return sum(row.recomputed for row in run.report().iterations)


# random programs


@FEWER
@given(LESSONS, PERCENT, MACHINES)
def test_steps_on_demand(lesson: Programs, percent: int, machine: Any) -> None:
    same(lesson, part(trace_of(lesson), percent), 5, **{**STAYS, "machine": machine})


@settings(max_examples=20, derandomize=True, **DRAWN)  # type: ignore[arg-type]
@given(PROGRAMS, PERCENT, MACHINES, st.booleans())
def test_programs_on_demand(program: Program, percent: int, machine: Any, stays: bool) -> None:
    theirs, start = trained(program), partial(managed, **{**HOW, **DTR, "machine": machine, "on_exit": "host"})
    free = demanded("64GiB", machine)
    trained(program, lambda: free)
    peak = max((row.peak for row in free.report().iterations), default=0)
    manage = partial(demanded, machine=machine, on_exit="host") if stays else start
    mine, _ = at_least(lambda limit: trained(program, lambda: manage(limit)), max(peak * percent // 100, most(program)))
    assert not unlike(theirs, mine), program


@FEWER
@given(st.lists(PROGRAM, min_size=2, max_size=2), st.lists(st.integers(0, 1), min_size=6, max_size=10), st.data())
def test_plans_are_left_and_found_again(programs: list[Any], schedule: list[int], data: st.DataObject) -> None:
    lesson = Programs(programs, "sgd")
    traces = []
    for k in (0, 1):
        lesson.schedule = [k]
        traces.append(trace_of(lesson))
    lesson.schedule = schedule
    limit = max(part(trace, data.draw(PERCENT)) for trace in traces)
    how: dict[str, Any] = {**DTR, "planner": "checkpoint"}
    if data.draw(st.booleans()):
        how["plan"] = (traces[0], data.draw(plans(traces[0])))
    same(lesson, limit, steps=len(schedule), cold=len(schedule), **how)


@FEWER
@given(LESSONS, PERCENT, st.data())
def test_a_plan_meets_recipes_that_are_not_its_own(lesson: Programs, percent: int, data: st.DataObject) -> None:
    """As those of ops before the plan; here of all ops, as if it was never followed."""
    trace = trace_of(lesson)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LimitMode, "_follows", lambda self, i: False)
        same(lesson, part(trace, percent), cold=8, plan=(trace, data.draw(plans(trace))), **DTR)


def test_a_plan_makes_nothing_again_of_what_another_recipe_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan would make y of x, which somebody has written; the recipe that y went by has kept what is between."""
    monkeypatch.setattr(LimitMode, "_follows", lambda self, i: False)
    x = torch.rand(64, 64)

    def step(between: Any = None) -> torch.Tensor:
        middle = x.exp()
        y = middle.cos()
        if between is None:
            del middle
        z = y * 2
        if between is not None:
            between(y)
        z.add_(1)
        return y + z

    trace = record(lambda: step, "cpu").trace
    (y,) = trace.ops.writes.tolist()[1]
    plan, expected, x_before = Plan([Recompute(y, after=2, before=4, at=4)]), step(), x.clone()
    with managed(2**20, device="cpu", plan=(trace, plan), **DTR) as run:
        first = step()

        def between(y: torch.Tensor) -> None:
            dropped(run, y)
            x.numpy()[:] = 0

        total = step(between)
    assert torch.equal(first, expected) and torch.equal(total, expected) and not torch.equal(x, x_before)


@FEWER
@given(LESSONS, HAPPENS, PERCENT)
def test_other_things_come_in_between(lesson: Programs, happens: dict[int, str], percent: int) -> None:
    limit = part(trace_of(lesson), percent)
    lesson.happens, lesson.keeps = happens, True
    same(lesson, limit, **STAYS)


@pytest.mark.parametrize("what", sorted({*WHAT} - {"cycle"}))
def test_each_thing_that_a_step_does(what: str) -> None:
    lesson = Programs([[(what, 0, 1), ("tanh", 1, 0), (what, 1, 1)]], "adam")
    same(lesson, part(trace_of(lesson), 50), 4, **STAYS)


@pytest.mark.parametrize("late", [False, True])
def test_ops_that_fail(late: bool) -> None:
    lesson = Programs([LONG], "sgd", below=late)
    trace = trace_of(lesson)
    for op in range(1, trace.n + 1, 3):
        lesson.bombs = {1: (op, late)}
        same(lesson, part(trace, 60), 3, cold=2, **STAYS)


# nets


@pytest.mark.parametrize("percent", [90, 60, 40])
@pytest.mark.parametrize("net", ["resnet", "unet", "lstm", "gpt"])
def test_nets(net: str, percent: int) -> None:
    """Batch norm's statistics, dropout and a tied embedding; with a slow link much less is copied."""
    lesson = Lesson(net, "sgd")
    trace = trace_of(lesson)
    limit, found = part(trace, percent), []
    theirs, _ = taught(lesson, steps=4)
    for rule in ("lru", "dtr"):
        run = demanded(limit, on_demand=rule, on_exit="host")
        mine, _ = taught(lesson, lambda run=run: run, 4)  # type: ignore[misc]
        assert mine == theirs
        rows = run.report().iterations
        assert {row.state for row in rows} == {"on demand"}
        assert all(row.peak <= limit for row in rows[1:])  # in the first one calls make what nobody knows of
        found.append((sum(row.recomputed for row in rows), sum(row.moved_out for row in rows)))
    assert not found[0][0] and found[1][0]
    if limit > least(trace)[0]:
        assert found[1][1] < found[0][1], found


@pytest.mark.parametrize("percent", [60, 40])
def test_what_is_recorded_is_what_the_program_has(percent: int) -> None:
    """Recipes keep what they read; a plan is not to take that for the program's."""
    lesson, traces = Lesson("gpt", "sgd"), []
    limit = part(trace_of(lesson), percent)
    for rule in ("lru", "dtr"):
        _, run = taught(lesson, lambda rule=rule: managed(limit, **{**HOW, **DTR, "on_demand": rule}), 4)  # type: ignore[misc]
        traces.append(run.report().trace)
    assert again(run) and traces[0].peak_live_bytes == traces[1].peak_live_bytes
    for column in ("size", "start", "end"):
        assert (getattr(traces[0].buffers, column) == getattr(traces[1].buffers, column)).all(), column


def test_a_link_that_is_quick_makes_nothing_again() -> None:
    lesson = Lesson("unet", "sgd")
    run = demanded(part(trace_of(lesson), 60), SLOW.with_(launch_ns=1e9), on_exit="host")
    taught(lesson, lambda: run, 3)
    assert not again(run) and sum(row.moved_out for row in run.report().iterations)


# long runs


def test_a_long_chain_is_dropped_and_made_again() -> None:
    with demanded(2**30, NEVER) as run:
        chain = [torch.rand(64)]
        for _ in range(3000):
            chain.append(chain[-1].sin())
        expected = chain[-1].clone()
        dropped(run, *chain[:0:-1])
        on_demand = run.mode.on_demand
        assert on_demand is not None
        assert torch.equal(chain[-1], expected)
    assert run.loop.report(open_row=True).iterations[-1].recomputed == 3000


def test_a_long_chain_is_made_again_by_whoever_writes_its_beginning() -> None:
    with demanded(2**30, NEVER) as run:
        x = torch.rand(64)
        chain = [x.sin()]
        for _ in range(3000):
            chain.append(chain[-1].sin())
        expected = chain[-1].clone()
        dropped(run, *chain[::-1])
        x.add_(1)
        assert run.memory.of([chain[0]])[0].where is Where.DEVICE
        assert torch.equal(chain[-1], expected)


def kept() -> int:
    gc.collect()
    return sum(isinstance(x, RecordedCall) for x in gc.get_objects())


@pytest.mark.parametrize("limit", [72, 100])
def test_what_a_loop_carries_on_leaves_nothing_behind(limit: int) -> None:
    """Neither where calls recompute, nor where there is room for all, so that nobody looks for what is out of date."""
    weight, counts = torch.rand(64, 64, requires_grad=True), []
    with demanded(limit * KIB) as run:
        h = torch.rand(64, 64)
        before = kept()
        for k in range(1000):
            x = (h @ weight).tanh()
            x.sum().backward()
            h = x.detach() * 0.5
            with torch.no_grad():
                weight -= 0.01 * weight.grad
            weight.grad = None
            if k % 100 == 99:
                counts.append((kept() - before, len(run.memory.by_key)))
    assert len({*counts[1:]}) == 1 and counts[0][0] < 10, counts
    assert (run.loop.report(open_row=True).iterations[-1].recomputed > 0) == (limit < 100)


# scores


def test_the_lowest_score_goes() -> None:
    with demanded(2**20) as run:
        on_demand = run.mode.on_demand
        assert on_demand is not None
        x, y = torch.rand(64, 64), torch.rand(64, 128)
        a, b = x.exp(), y.exp()
        b.sum()
        cells = run.memory.of([x, y, a, b])
        for used, cell in zip((0, 0, 0, 0), cells):
            cell.used, on_demand.clock = used, 10**6
        scores = [on_demand.time(cell) / cell.size for cell in cells]
        assert scores[0] > scores[1] and scores[2] > scores[3]  # a launch is less for more bytes
        assert on_demand.evict(1, [cells[1]]) and cells[3].where is Where.RECIPE
        alone = on_demand.time(cells[1])
        assert alone > on_demand._roofline(0, 64 * 128 * 4)  # b has gone, which is made of y
        cells[0].used = on_demand.clock - 1  # used just now
        assert on_demand.evict(1, [cells[1]]) and cells[2].where is Where.RECIPE
        assert on_demand.evict(1, [cells[0]]) and cells[1].where is Where.RECIPE
        assert on_demand.evict(1, []) and not on_demand.evict(1, [])


def test_equal_scores_are_told_apart_by_who_was_used_last() -> None:
    with demanded(2**20) as run:
        on_demand = run.mode.on_demand
        assert on_demand is not None
        tensors = [torch.rand(64, 64) for _ in range(4)]
        run.memory.ensure_resident(run.memory.of(tensors[2:0:-1]), 0, "an op")
        cells = run.memory.of(tensors)
        for cell in cells:
            cell.used = 0
        order = []
        while on_demand.evict(1, []):
            order.append([cell.where is Where.RECIPE for cell in cells])
        assert [sum(x) for x in zip(*order)] == [4, 1, 2, 3]


def test_a_run_by_lru_keeps_no_calls() -> None:
    with managed("1MiB", **HOW) as run:
        torch.rand(64).exp()
    assert run.mode.on_demand is None and run.memory.policy is None and isinstance(run, Managed)
