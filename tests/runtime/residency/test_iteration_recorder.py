"""Where two iterations are alike: by the boundaries that a program tells, else by what repeats; how much is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gpumem.runtime.residency import iteration_recorder
from gpumem.runtime.residency.iteration_recorder import Alike, IterationRecorder
from gpumem.trace.record.recorder import Recorder


@dataclass
class Call:
    """An op that is called like a letter."""

    name: str
    touched: list[Any] = field(default_factory=list)

    @property
    def key(self) -> int:
        return ord(self.name)


def by_boundaries(codes: str) -> list[tuple[int, int]] | None:
    """What is found at the last boundary, where each letter is an op between two."""
    iterations: IterationRecorder[Any] = IterationRecorder(Recorder(), repeats=True, min_length=1)
    found: Alike | None = None
    for letter in codes:
        iterations.note(Call(letter))
        found = iterations.boundary()
    return None if found is None else found.bounds


@pytest.mark.parametrize(
    ("codes", "period"), [("", 0), ("a", 0), ("ab", 0), ("aa", 1), ("baa", 1), ("abab", 2), ("aab", 0), ("cabcabc", 3)]
)
def test_an_iteration_may_have_several_boundaries(codes: str, period: int) -> None:
    n = len(codes)
    assert by_boundaries(codes) == ([(n - 2 * period, n - period), (n - period, n)] if period else None)


def test_an_iteration_has_so_many_boundaries_at_most() -> None:
    letters = "abcdefghijkl"
    assert by_boundaries(2 * letters[: iteration_recorder.SEGMENTS]) is not None
    assert by_boundaries(2 * letters[: iteration_recorder.SEGMENTS + 1]) is None and iteration_recorder.SEGMENTS == 8


def test_boundaries_within_an_iteration_are_its_marks() -> None:
    iterations: IterationRecorder[Any] = IterationRecorder(Recorder(), repeats=False, min_length=1)
    found = None
    for part in ("xy", "z", "xy", "z"):
        for letter in part:
            iterations.note(Call(letter))
        found = iterations.boundary()
    assert found == Alike([(0, 3), (3, 6)], frozenset({2}))
    assert iterations.boundary() is None  # nothing ran since


def repeating(names: str, free_late: bool) -> list[Alike]:
    """What is found in ops that make a block each, of which the one before is freed, before or after the next op."""
    recorder = Recorder()
    iterations: IterationRecorder[Any] = IterationRecorder(recorder, repeats=True, min_length=1)
    found, last = [], None
    for letter in names:
        mine = recorder.malloc(8)
        if last is not None and not free_late:
            recorder.free(last)
        recorder.exec(letter, [], [mine])
        if last is not None and free_late:
            recorder.free(last)
        last = mine
        if (one := iterations.note(Call(letter))) is not None:
            found.append(one)
    return found


@pytest.mark.parametrize("free_late", [False, True])
def test_what_differs_by_name_alone_does_not_repeat(free_late: bool) -> None:
    assert not repeating("abcdefgh", free_late)
    (found, *_) = repeating("xyabcabcabcabc", free_late)
    (lo, middle), (again, hi) = found.bounds
    assert middle == again and middle - lo == hi - middle == 3 and lo >= 2


@given(st.text("abc", max_size=6), st.text("abcd", min_size=1, max_size=5), st.booleans())
def test_what_is_found_is_there_twice(prefix: str, period: str, free_late: bool) -> None:
    names = prefix + 6 * period
    found = repeating(names, free_late)
    assert found or len({*period}) < len(period)  # what repeats within a period may be found, and be none of two
    for one in found[:1]:
        (lo, middle), (again, hi) = one.bounds
        assert 0 <= lo < middle == again < hi <= len(names) and names[lo:middle] == names[middle:hi]


def test_a_book_is_full_some_day(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(iteration_recorder, "HORIZON", 5)
        iterations: IterationRecorder[Any] = IterationRecorder(Recorder(), repeats=False, min_length=1)
        told = []
        for letter in "abcdef":
            iterations.note(Call(letter))
            told.append(iterations.full)
        assert told == [False] * 4 + [True] * 2
    iterations = IterationRecorder(Recorder(), repeats=False, min_length=1)
    for k in range(iteration_recorder.TRIES):
        assert not iterations.full
        iterations.note(Call(chr(97 + k)))
        iterations.boundary()
    assert iterations.full and iterations.knows_boundaries
