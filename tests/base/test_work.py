"""Budgets: where they end, what they tell, how they nest."""

from __future__ import annotations

import contextvars
import threading

import pytest

from gpumem.base import work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [5.0]
    monkeypatch.setattr(work, "now", lambda: moment[0])
    return moment


def test_a_budget_ends_in_time_and_says_so(clock: list[float]) -> None:
    with work.within(10):
        assert (work.left(), work.seconds(), work.over()) == (10, 10, False)
        assert [*work.each("ab")] == ["a", "b"] and work.hint("no room") == "no room"
        clock[0] = 9.0
        with work.part(share=0.5):
            assert work.left() == 3
        assert work.left() == 6
        clock[0] = 15.0
        assert work.over() and 0 < work.left() < 1e-6 and [*work.each("ab")] == []
        assert work.hint("no room") == work.LATE
    assert work.seconds() is None and not work.over()


def test_an_inner_budget_never_ends_after_the_outer_one(clock: list[float]) -> None:
    with work.within(4):
        with work.within(60):
            assert work.left() == 4
        with work.within(None):
            assert work.left() == 4
        with work.within(1):
            assert work.left() == 1
            clock[0] += 2
            assert work.over()
        assert not work.over()
        clock[0] += 4
        with work.part(share=0.5):
            assert work.over()


def test_work_that_nobody_wants_any_more_is_late_whatever_its_seconds(clock: list[float]) -> None:
    unwanted = [False, False]
    with work.within(stopped=lambda: unwanted[0]), work.within(60, print, stopped=lambda: unwanted[1]):
        with work.part("search", 0.5):
            assert (work.over(), work.left(), work.hint()) == (False, 30, "")
            for k in (0, 1):
                unwanted[k] = True
                assert work.over() and work.left() == work.seconds() == work.LEAST and [*work.each("ab")] == []
                unwanted[k] = False
        assert not work.over()
    with work.within(stopped=lambda: True):
        assert work.over() and work.seconds() == work.LEAST
    assert work.seconds() is None


def test_a_part_of_no_use_is_given_up(clock: list[float]) -> None:
    seen = []
    with work.within(2), pytest.raises(work.TimeUp):
        for k in work.all_of(range(5)):
            seen.append(k)
            clock[0] += 1
    assert seen == [0, 1] and [*work.all_of("ab")] == ["a", "b"]


def test_what_is_raised_closes_a_budget(clock: list[float]) -> None:
    with pytest.raises(KeyError), work.within(1):
        raise KeyError
    assert work.seconds() is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_seconds_that_are_none(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"seconds: {seconds} must be positive"), work.within(seconds):
        pass


def test_a_thread_works_by_the_budget_whose_context_it_runs_in(clock: list[float]) -> None:
    seen = []
    with work.within(3):
        context = contextvars.copy_context()
        for run in (context.run, lambda f: f()):
            thread = threading.Thread(target=run, args=(lambda: seen.append(work.seconds()),))
            thread.start()
            thread.join()
    assert seen == [3, None]


class Heard:
    """A listener that counts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.share = 0.0

    def __call__(self, text: str) -> None:
        self.texts.append(text)

    def reached(self, share: float) -> None:
        self.share = share


def test_parts_name_what_is_told_and_count_in_the_step_around_them() -> None:
    heard, inner, shares = Heard(), Heard(), []
    with work.within(progress=heard):
        for k in range(2):
            work.step(k, 2)
            with work.part("search"):
                work.tell("begins")
                for j in range(4):
                    work.step(j, 4)
                    shares.append(heard.share)
        with work.within(progress=inner), work.part("mine"):
            work.step(1, 2)
            work.tell("7 of 5")
    assert heard.texts == ["search: begins"] * 2 and shares == [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875]
    assert (inner.texts, inner.share) == (["mine: 7 of 5"], 0.5)
    work.tell("nobody is told"), work.step(3, 4)
    with work.within(progress=heard):
        work.step(0, 2)
    assert heard.share == 0


def test_keywords_of_a_function_are_its_budget(clock: list[float]) -> None:
    @work.budgeted
    def told(x: int, *, seconds: float | None = None, progress: work.Progress | None = None) -> float:
        work.tell(str(x))
        return work.left()

    @work.budgeted
    def given(seconds: float | None = None) -> float:
        return work.left()

    heard = Heard()
    assert (given(3), given(seconds=4), given()) == (3, 4, float("inf"))
    with work.within(8, heard):
        assert (told(1), told(2, seconds=2, progress=None)) == (8, 2)
        assert told(3, progress=print) == 8
    assert heard.texts == ["1", "2"]


def test_who_is_told_by_a_keyword_is_told_once() -> None:
    """What a planner of the user's own hands on to one of ours, under another name."""
    heard = Heard()
    with work.within(progress=heard), work.part("theirs"):
        told = work.teller()
        with work.within(progress=told), work.part("ours"):
            work.tell("begins")
        with work.within(progress=lambda text: told(f"by ours: {text}")):
            work.tell("ends")
    assert heard.texts == ["theirs: ours: begins", "theirs: by ours: ends"]
