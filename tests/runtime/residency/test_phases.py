"""When a run records, follows, lets go, comes back, and records again."""

from __future__ import annotations

import pytest

from gpumem.runtime.residency import observing
from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.iteration_recorder import TRIES
from gpumem.runtime.residency.phases import (
    CALM,
    PATIENCE,
    FollowingPhase,
    OnDemandPhase,
    Phase,
    RecordingPhase,
    _touched,
)
from gpumem.runtime.residency.run_loop import NOTES
from gpumem.swap.plan import Plan, Swap
from gpumem.trace import Trace
from gpumem.trace.record.recorder import Recorder
from tests.runtime.residency.programs import Cell, Letters

SHORT = {RecordingPhase: "R", FollowingPhase: "F", OnDemandPhase: "D"}


def phase(program: Letters) -> str:
    """`R`ecording, `F`ollowing or on `D`emand, with the inner one behind a recording."""
    now: Phase[Cell] = program.loop.phase
    return SHORT[type(now)] + (SHORT[type(now.inner)] if isinstance(now, RecordingPhase) else "")


def phases(program: Letters, *parts: str) -> list[str]:
    """The phases after some parts of a program each."""
    found = []
    for part in parts:
        program.run(part)
        found.append(phase(program))
    return found


def test_two_iterations_alike_are_followed_and_the_book_is_closed() -> None:
    program = Letters()
    assert phases(program, "", "ab|", "ab", "|", "a", "b|") == ["RD", "RD", "RD", "F", "F", "F"]
    assert program.rows == [("recorded", 2), ("recorded", 2), ("idle", 2)]
    assert [iterations.closed for iterations in program.books] == [True] and program.log == [("found", "2 ops")]


def test_an_iteration_that_strays_is_no_reason_to_record_again_but_three_in_a_row_are() -> None:
    program = Letters()
    program.run("ab|ab|")
    assert PATIENCE == 3
    assert phases(program, "ac|", "xy|", "ab|", "ac|", "a", "c|", "xy") == ["F", "F", "F", "F", "F", "F", "D"]
    assert phases(program, "|", "xy|", "xy|") == ["RD", "RD", "F"]
    states = [row.state for row in program.loop.ledger.rows]
    assert states == ["recorded"] * 2 + ["on demand"] * 2 + ["idle"] + ["on demand"] * 3 + ["recorded"] * 2
    assert [row.deviation for row in program.loop.ledger.rows if row.deviation] == [
        "op 1: c came for b",
        "op 0: x came for a",
        *["op 1: c came for b"] * 2,
        "op 0: x came for a",
    ]


def test_an_iteration_that_ends_too_soon() -> None:
    program = Letters()
    program.run("abc|abc|")
    assert phases(program, "a|", "ab|", "abc|", "ab|", "a|", "ab", "|") == ["F", "F", "F", "F", "F", "F", "RD"]
    rows = [*program.loop.ledger.rows][2:]
    assert [row.deviation for row in rows] == [
        "it ended after 1 of 3 ops",
        "it ended after 2 of 3 ops",
        "",
        "it ended after 2 of 3 ops",
        "it ended after 1 of 3 ops",
        "it ended after 2 of 3 ops",
    ]
    assert {row.state for row in rows if row.deviation} == {"on demand"}


def test_a_boundary_that_may_be_none_ends_nothing_where_the_plan_has_none() -> None:
    program = Letters()
    program.run("ab|ab|a.b")  # an optimizer's step, where iterations are told by who calls
    assert phase(program) == "F" and program.rows[-1] == ("idle", 2)


def test_boundaries_within_an_iteration_are_its_own() -> None:
    program = Letters()
    program.run("a.bc.a.bc.")
    assert phase(program) == "F" and program.loop.phase.followed is not None
    assert program.loop.phase.followed.marks == frozenset({1})
    program.run("a.bc.ab.")
    assert [row.deviation for row in program.loop.ledger.rows][-2:] == ["", "it ended after 2 of 3 ops"]


def test_a_plan_left_is_gone_on_with_at_the_next_boundary() -> None:
    program = Letters()
    program.run("ab|ab|")
    assert phases(program, "x", "y", "a|", "a") == ["D", "D", "F", "F"]
    assert program.log == [("found", "2 ops"), ("deviated", "op 0: x came for a")]
    assert program.rows[2:] == [("on demand", 3)]


def test_a_plan_left_is_gone_on_with_where_its_first_ops_come_by() -> None:
    """The ops before are a row, those that the plan has taken back are the next one's."""
    program = Letters()
    program.run("abc|abc|")
    assert phases(program, "x", "a", "b", "c") == ["D", "D", "D", "F"]
    assert program.log[-1] == ("resumed", "") and program.rows[2:] == [("on demand", 1), ("idle", 3)]
    assert [row.deviation for row in program.loop.ledger.rows][2:] == ["op 0: x came for a", ""]


def test_without_boundaries_an_iteration_away_from_the_plan_is_as_long_as_one_along_with_it() -> None:
    program = Letters(repeats=True)
    program.run("abcd" * 3)
    n = 4
    while phase(program)[0] == "R":
        program.run("abcd")
    before = len(program.rows)
    program.run("wwwwwww")
    assert phase(program) == "D" and program.rows[before:][-1] == ("on demand", n)
    followed = program.loop.phase.followed
    assert followed is not None and followed.strayed == 1
    program.run("w")
    assert followed.strayed == 2
    program.run("www")
    assert phase(program) == "D"
    program.run("w")
    assert phase(program) == "RD"


def cheap() -> Letters:
    """A program whose ops are cheap to record, and whose iterations nobody tells of; `abcd` repeats."""
    program = Letters(eager=True, repeats=True)
    assert phases(program, "abcd" * 3, "abc", "d") == ["RD", "RD", "F"]
    return program


def test_where_recording_is_cheap_it_begins_with_the_first_op_not_as_planned() -> None:
    assert CALM == 2
    program = cheap()
    assert phases(program, "abcd", "x", "abc", "d", "abc", "d") == ["F", "RD", "RD", "RF", "RF", "F"]
    assert [iterations.closed for iterations in program.books] == [True, True]
    assert [iterations.begun for iterations in program.books] == [
        True,
        False,
    ]  # within an iteration there is no beginning
    assert program.rows[-4:] == [("idle", 4), ("on demand", 4), ("idle", 1), ("idle", 4)]


def test_calm_is_counted_anew_with_each_op_that_strays() -> None:
    program = cheap()
    assert phases(program, "abcd" * 2, "x", "abcd", "yabcd", "abcd", "abcd") == ["F", "RD", "RF", "RF", "F", "F"]


def test_what_is_recorded_beside_a_plan_may_be_another_iteration() -> None:
    program = cheap()
    assert phases(program, "wvwvwv", "w") == ["RD", "F"]
    assert program.log[-1] == ("found", "2 ops") and program.rows[-1] == ("native", 2)
    program.run("vwv")
    assert program.log[-1] == ("found", "2 ops") and program.rows[-1] == ("idle", 2)


def test_a_book_that_is_full_is_begun_afresh() -> None:
    program = Letters()
    program.run("".join(f"a{'b' * k}|" for k in range(TRIES - 1)))
    assert len(program.books) == 1
    program.run("ac|")
    assert [iterations.closed for iterations in program.books] == [True, False] and phase(program) == "RD"
    program.run("ab|ab|")
    assert phase(program) == "F"


def test_what_repeats_and_is_no_iteration() -> None:
    """Where boundaries are told the recording goes on; after so many in a row the run gives up, and says why."""
    program = Letters()
    program.wrong = "a buffer stays for longer each time"
    program.run("ab|" * TRIES)
    assert program.loop.failed == TRIES - 1 and len(program.books) == 1  # the first by itself is alike to none
    program.run("ab|")
    assert program.loop.failed == TRIES - 1 and len(program.books) == 2 and not program.loop.given_up
    program.run("ab|")
    assert program.loop.failed == TRIES - 1
    program.run("ab|")
    assert program.loop.given_up and phase(program) == "D"
    (note,) = program.loop.notes
    assert note.endswith("a buffer stays for longer each time")


def test_what_repeats_and_is_an_iteration_after_all() -> None:
    program = Letters()
    program.wrong = "not yet"
    program.run("ab|ab|ab|")
    program.wrong = ""
    program.run("ab|")
    assert phase(program) == "F" and program.loop.failed == 0


def test_what_was_alive_all_the_time_is_told_at_each_boundary_of_a_recording() -> None:
    program = Letters()
    program.sizes = {"a": 5, "b": 7}
    program.run("ab|ab|")
    assert program.least == [0, 12]  # nothing was there when the first began


def planned(trace: Trace) -> Planning:
    """A plan that has `a` away while others run, and is there at once."""
    swaps = [Swap(0, 0, trace.n, 1, trace.n - 1)]

    def ask(trace: Trace, seconds: object, offer: object) -> tuple[bool, list[str]]:
        assert callable(offer)
        offer(Plan.of(trace, swaps))
        return True, []

    return Planning(trace, 10, ask)


def test_a_plan_is_gone_over_to_where_an_iteration_ends() -> None:
    program = Letters()
    program.plan = planned
    program.run("abcd|abcd|abcd|abcd|")
    assert [kind for kind, _ in program.log] == ["found", "planned"] and phase(program) == "F"
    assert program.rows[2:] == [("planned", 4)] * 2 and program.loop.job is None
    moves = [move for _, move, _ in program.memory.moves]
    assert moves == ["out"] + 2 * ["out", "release", "bring"]  # it is copied when the plan begins


def test_a_report_has_the_plan_and_the_row_under_way() -> None:
    program = Letters(limit=5)
    program.sizes = dict.fromkeys("abcd", 2)
    before = program.loop.report(open_row=True)
    assert (before.plan, before.trace, before.planned_peak, before.iterations) == (None, None, 0, ())
    program.plan = planned
    program.run("abcd|abcd|ab")
    report = program.loop.report(open_row=True)
    assert report.plan is not None and report.trace is not None and report.trace.n == 4
    assert report.planned_peak == report.plan.apply(report.trace).peak_live_bytes == 8
    assert (report.limit, report.held) == (5, program.memory.held)
    assert [(row.number, row.state, row.ops) for row in report.iterations] == [
        (0, "recorded", 4),
        (1, "recorded", 4),
        (2, "planned", 2),
    ]
    assert [row.ops for row in program.loop.report(open_row=False).iterations] == [4, 4]
    program.run("x")
    assert program.loop.report(open_row=True).iterations[-1].state == "on demand"
    program.loop.close()
    assert program.loop.report(open_row=False).iterations[-1].deviation == "op 2: x came for c"


def test_a_program_that_pauses_goes_on_where_its_iteration_begins() -> None:
    program = Letters()
    program.run("ab|a")
    program.loop.pause()
    program.loop.start()  # what was begun and left is no iteration
    program.run("ab|ab|")
    assert program.rows == [("recorded", 2)] * 3 and phase(program) == "RD"  # the second began with the one left
    program.run("ab|")
    assert phase(program) == "F"
    program.run("a")
    program.loop.pause()
    program.loop.start()
    assert phases(program, "a", "b") == ["F", "F"] and program.log == [("found", "2 ops")]
    program.run("x")
    program.loop.pause()
    assert phase(program) == "F"


def test_what_observes_and_fails_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "STRICT", False)
    program = Letters()

    def fails() -> None:
        raise KeyError("a defect")

    assert program.loop.observed(lambda x: x + 1, 2) == 3 and not program.loop.given_up
    assert program.loop.observed(fails) is None
    assert program.loop.given_up and phase(program) == "D" and program.books[0].closed
    assert [*program.loop.notes] == ["runs on demand, as it cannot be recorded: KeyError: 'a defect'"]
    program.run("ab|ab|ab|")
    program.loop.pause()
    program.loop.start()
    assert phase(program) == "D" and {state for state, _ in program.rows} == {"on demand"}


def test_an_iteration_that_is_to_be_recorded_anew() -> None:
    program = Letters()
    program.plan = lambda trace: "the optimizer has made its state"
    program.run("ab|ab|")
    assert phase(program) == "RD" and [iterations.closed for iterations in program.books] == [True, False]
    assert all(iterations.begun for iterations in program.books)
    assert [*program.loop.notes] == ["recorded anew: the optimizer has made its state"]
    program.plan = lambda trace: None
    program.run("ab|ab|")
    assert phase(program) == "F"


def test_boundaries_without_ops_between_them() -> None:
    program = Letters()
    program.run("||ab||ab||")
    assert program.rows == [("recorded", 2), ("recorded", 2)] and phase(program) == "F"


def test_notes_are_bounded() -> None:
    program = Letters()
    for k in range(NOTES + 5):
        program.loop.note(str(k))
    assert len(program.loop.notes) == NOTES == 1000 and program.loop.notes[0] == "5"
    assert program.loop.noted == NOTES + 5


def missing(program: Letters) -> list[bool]:
    return [row.misses > 0 for row in program.loop.ledger.rows if row.state == "planned"]


def test_ops_touch_the_same_whatever_its_numbers() -> None:
    def trace(first: int, ops: list[tuple[int, int]]) -> Trace:
        recorder = Recorder()
        blocks = [recorder.malloc(8, kind="param") for _ in range(3)]
        for read, written in ops:
            recorder.exec("op", [blocks[(first + read) % 3]], [blocks[(first + written) % 3]])
        return recorder.trace()

    there = [(0, 1), (1, 2), (2, 0)]
    assert len({str(_touched(trace(first, there))) for first in range(3)}) == 1
    assert _touched(trace(0, there)) != _touched(trace(0, [(0, 1), (1, 2), (0, 2)]))


RIGHT = "aAbBcCdD"
WRONG = "aAbBcAdD"  # c reads what a has made, while that is off the device


def planned_for() -> Letters:
    """A program that follows a plan for `RIGHT`, and there will be no other one."""
    program = Letters(eager=True, repeats=True)
    program.plan = planned
    program.run(RIGHT * 4)
    program.plan = lambda trace: None
    assert phase(program) == "F" and program.log[-1][0] == "planned"
    return program


def test_ops_that_look_as_planned_and_touch_something_else() -> None:
    program = planned_for()
    assert phases(program, *[WRONG] * 7) == ["F", "F", "RF", "RF", "RF", "RF", "F"]
    assert [kind for kind, _ in program.log] == ["found", "planned", "found"] and missing(program) == [True] * 6


def test_ops_as_planned_that_miss_what_they_touch_all_the_same() -> None:
    """Of the same iteration there is the same plan, so it is not planned for again."""
    program = planned_for()
    follower = program.loop.phase.follower
    assert follower is not None
    follower.at[-2:] = [None, None]  # it does not come back by itself any more
    assert phases(program, *[RIGHT] * 8) == ["F", "F", "F", "RF", "RF", "RF", "RF", "F"]
    assert [kind for kind, _ in program.log] == ["found", "planned"] and missing(program) == [False] + [True] * 7


def test_misses_that_were_made_up_for() -> None:
    program = planned_for()
    followed, strayed = program.loop.phase.followed, []
    assert followed is not None
    for turn in (WRONG, WRONG, RIGHT, WRONG):
        program.run(turn)
        strayed.append(followed.strayed)
    assert strayed == [1, 2, 0, 1] and phase(program) == "F"
