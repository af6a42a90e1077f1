"""The race detector sees every wait that is left out, as wrong bytes in some order do, and names ops and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gpumem.execute import Emulator, GenericOp, Program, Race, carried, in_issue_order, initial, late, prepare
from gpumem.execute.races import Races
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.hazards import hazards
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.execute.programs import planned, two_streams
from tests.runs import Outcome, outcome, same
from tests.strategies import any_plans, plans, steps, traces


def without(program: Program, y: int, x: int) -> Program:
    """The program in which op `x` no longer waits for position `y`."""
    program.after[x].remove(y)
    return program


def caught(whole: Trace, want: Outcome, trace: Trace, placement: Placement, y: int, x: int) -> tuple[bool, bool]:
    """Whether the race detector, and whether wrong bytes in some order, show that op `x` does not wait for `y`."""
    state = initial(whole, seed=1)

    def program(emulator: Emulator, launch: GenericOp) -> Program:
        made = prepare(trace, placement, emulator, launch)
        made.write({of: value for of, value in state.items() if of in made.crossing()})
        return without(made, y, x)

    try:
        program(Emulator(), GenericOp(whole)).run(3)
        raced = False
    except Race as race:
        raced = race.second == x
    launch = GenericOp(whole)
    blind = program(Emulator(late({y + trace.n}), races=False), launch)  # y of iteration 0 or 1 comes last
    blind.run(3)
    held = carried(whole)
    return raced, not same(want, ({of: v for of, v in blind.read().items() if of in held}, launch.seen))


@pytest.mark.thorough
@pytest.mark.jit
@pytest.mark.parametrize("name", ["vgg16", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_no_wait_of_a_real_plan_can_be_spared(name: str) -> None:
    whole, there, trace, placement = planned(name)
    want = outcome(whole, whole, there, in_issue_order)
    edges = [(y, x) for x, row in enumerate(hazards(trace, placement).after.tolist()) for y in row]
    assert 20 < len(edges) < 60
    for y, x in edges:
        assert caught(whole, want, trace, placement, y, x) == (True, True), f"op {x} without its wait for {y}"


@st.composite
def rewritten(draw: st.DrawFn) -> Trace:
    """Any trace with swaps, or a training step with recomputations, what these keep, and dropped tails."""
    if draw(st.booleans()):
        trace = draw(traces(streams=3))
        return draw(plans(trace)).apply(trace)
    trace = draw(steps(streams=3))
    return draw(any_plans(trace)).apply(trace)


@given(st.data())
def test_the_race_detector_misses_no_dropped_wait(data: st.DataObject) -> None:
    swapped = data.draw(rewritten())
    placement = best_fit(swapped, alignment=data.draw(st.sampled_from([1, 4])))
    program = prepare(swapped, placement, Emulator())
    edges = [(y, x) for x, row in enumerate(program.after) for y in row]
    program.run(2)
    if edges:
        y, x = data.draw(st.sampled_from(edges))
        b = swapped.buffers
        touched = {j for i in (x, y % swapped.n) for j in (*swapped.ops.reads[i], *swapped.ops.writes[i])}
        if all(b.size[j] for j in touched):  # no bytes, no race
            with pytest.raises(Race, match=rf"op {x} .* races with op"):
                without(prepare(swapped, placement, Emulator()), y, x).run(2)


def test_a_race_late_in_a_long_run_is_seen() -> None:
    program = prepare(two_streams(), Placement.at(two_streams(), [4, 6]), Emulator())
    races, rounds = Races(program.layout), 50
    races.begin(4 * 3)  # of the last four rounds
    for k in range(rounds):
        for work, row in zip(program.works, program.after):
            after = [3 * k + y for y in row if 3 * k + y >= 0]
            if (k, work.op) != (rounds - 1, 2):
                races.issue(3 * k + work.op, work, after)
    with pytest.raises(Race, match=r"op 2 \(c\): races with op 1 \(b\)"):
        races.issue(3 * rounds - 1, program.works[2], [])
    with pytest.raises(ValueError, match="waits for op 7 in issue order, 142 before it: too long ago"):
        races.issue(3 * rounds - 1, program.works[2], [3 * rounds - 2, 7])
    races.issue(3 * rounds - 1, program.works[2], [3 * rounds - 2])


def test_a_race_names_the_ops_and_the_bytes() -> None:
    trace = two_streams()
    placement = Placement.at(trace, [4, 6])
    with pytest.raises(Race) as race:
        without(prepare(trace, placement, Emulator()), 1, 2).run()
    assert str(race.value) == "op 2 (c): races with op 1 (b) for device bytes 6..12: neither waits for the other"
    assert (race.value.first, race.value.second, race.value.low, race.value.high) == (1, 2, 6, 12)
