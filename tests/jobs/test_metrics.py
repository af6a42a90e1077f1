"""MSR, EOR and CBR from runs made by hand."""

from __future__ import annotations

import math

import pytest

from gpumem.jobs import Event, JobRun, Outcome, Saving, Steady, by_iteration, makespan, savings, steady


def run(name: str, ends: list[int], peaks: list[int], *, start: int = 0) -> JobRun:
    starts = [start, *ends[:-1]]
    leave = ends[-1] if ends else -1
    some = tuple(0 for _ in ends)
    return JobRun(name, start, leave, 0, tuple(starts), tuple(ends), tuple(peaks), tuple(peaks), some, 0, 0, {})


def outcome(jobs: list[JobRun], *changes: tuple[int, str]) -> Outcome:
    log = [Event(0, job.name, "arrive") for job in jobs] + [Event(ns, jobs[0].name, kind) for ns, kind in changes]
    return Outcome(tuple(jobs), 0, (), (), tuple(log))


def test_the_steady_time_lies_between_the_last_change_and_the_first_departure() -> None:
    a, b = run("a", [10, 22, 32, 42, 52], [9, 9, 5, 6, 9]), run("b", [20, 40, 60, 80], [8, 7, 7, 7])
    found = steady(outcome([a, b], (0, "launch"), (22, "adopt"), (55, "adopt")))  # the last change comes too late
    assert found == {"a": Steady(range(2, 5), 10.0, 9), "b": Steady(range(3, 4), 20.0, 7)}  # b: none lies within 22..52


def test_who_never_ran_does_not_count() -> None:
    a, never = run("a", [10, 20], [5, 5]), run("b", [], [])
    assert list(steady(outcome([a, never]))) == ["a"]
    assert makespan(outcome([a, never])) == 20 and makespan(outcome([never])) == 0
    assert steady(outcome([never])) == {}
    whole, each = savings(outcome([never]), outcome([never]))
    assert (whole, each) == (Saving(0.0, 0.0), {})


def test_savings_add_up_peaks_and_average_times() -> None:
    before = outcome([run("a", [10, 20], [100, 100]), run("b", [40, 80], [300, 300])])
    after = outcome([run("a", [11, 22], [80, 80]), run("b", [40, 80], [210, 200])])  # of b the last iteration counts
    whole, each = savings(after, before)
    assert each["a"].msr == pytest.approx(0.2) and each["a"].eor == pytest.approx(0.1)
    assert each["a"].cbr == pytest.approx(2) and each["b"].eor == 0 and math.isinf(each["b"].cbr)
    assert whole.msr == pytest.approx(1 - 280 / 400) and whole.eor == pytest.approx(0.05)


def test_where_plans_are_always_made_anew_iterations_are_counted_from_a_number_on() -> None:
    a, b = run("a", [10, 22, 32, 42, 52], [9, 9, 5, 6, 9]), run("b", [20, 40, 60, 80], [8, 7, 7, 7])
    found = steady(outcome([a, b], (0, "launch"), (42, "adopt")), first=1)
    assert found == {"a": Steady(range(1, 5), 10.5, 9), "b": Steady(range(1, 2), 20.0, 7)}
    assert steady(outcome([a, b]), first=2)["b"] == Steady(range(3, 4), 20.0, 7)  # its third has not ended by 52


def test_the_way_to_the_steady_state_counts_changes_of_plans() -> None:
    before = outcome([run("a", [10, 20], [9, 9]), run("b", [20, 40], [9, 9])])
    late = JobRun("a", 0, 44, 0, (0, 12, 33), (11, 23, 44), (9,) * 3, (9,) * 3, (5, 1, 0), 0, 0, {})
    found = by_iteration(outcome([late, run("b", [20, 40], [9, 9])]), before)
    assert [turn.eor for turn in found] == pytest.approx([0.1, 0.55, 0.1])
    assert [turn.passive for turn in found] == [5, 1, 0]
