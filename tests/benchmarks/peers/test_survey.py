"""Who is asked how often, what the rows say, and the heights that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.asking import INVALID, LATE, PLACED, Answer
from benchmarks.peers.instances import Instance, generated, in_folder, of_file
from benchmarks.peers.survey import Row, keep_known, read_known, rows_of
from benchmarks.peers.table import Planner
from gpumem import io
from gpumem.trace import Trace
from tests.benchmarks.peers.fakes import fake

TWO = Instance.of(Trace.from_lifetimes([4, 2], [0, 1], [2, 3], name="two"), "twos")


class Says:
    """Answers by planner and time, and keeps what was asked."""

    def __init__(self, **answers: dict[float, Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, float]] = []

    def __call__(self, planner: Planner, instance: Instance, seconds: float) -> Answer:
        name = planner.adapter.partition(":")[2]
        self.asked.append((name, seconds))
        return self.answers[name][seconds]


def rows(says: Says, *, timed: bool, known: dict[str, Row] | None = None) -> list[tuple[object, ...]]:
    planners = {name: fake(name, timed=timed) for name in says.answers}
    found = rows_of(TWO, planners, [10.0, 1.0], says, known or {})
    return [tuple(row[key] for key in ("planner", "given", "status", "height", "ratio", "best")) for row in found]


def test_one_that_knows_the_time_is_asked_at_each() -> None:
    says = Says(a={1.0: Answer(PLACED, 1.0, 9), 10.0: Answer(PLACED, 9.9, 8)})
    assert rows(says, timed=True) == [("a", 1.0, PLACED, 9, 1.5, 8), ("a", 10.0, PLACED, 8, 8 / 6, 8)]
    assert says.asked == [("a", 1.0), ("a", 10.0)]


def test_what_nothing_can_beat_is_not_asked_again() -> None:
    says = Says(a={1.0: Answer(PLACED, 1.0, 6)})
    assert rows(says, timed=True) == [("a", 1.0, PLACED, 6, 1.0, 6), ("a", 10.0, PLACED, 6, 1.0, 6)]


@pytest.mark.parametrize("later", [Answer(LATE), Answer(PLACED, 9.0, 9)])
def test_what_was_there_by_a_shorter_time_counts(later: Answer) -> None:
    says = Says(a={1.0: Answer(PLACED, 1.0, 8), 10.0: later})
    assert rows(says, timed=True)[1] == ("a", 10.0, PLACED, 8, 8 / 6, 8)
    says = Says(a={1.0: Answer(PLACED, 1.0, 8), 10.0: Answer(INVALID, 9.0)})
    assert rows(says, timed=True)[1] == ("a", 10.0, INVALID, None, None, 8)


def test_one_that_knows_no_time_has_no_result_before_it_ended() -> None:
    says = Says(a={10.0: Answer(PLACED, 3.0, 7)}, b={10.0: Answer(PLACED, 0.5, 8)}, c={10.0: Answer(INVALID, 3.0)})
    assert rows(says, timed=False) == [
        ("a", 1.0, LATE, None, None, 7),
        ("a", 10.0, PLACED, 7, 7 / 6, 7),
        ("b", 1.0, PLACED, 8, 8 / 6, 7),
        ("b", 10.0, PLACED, 8, 8 / 6, 7),
        ("c", 1.0, LATE, None, None, 7),
        ("c", 10.0, INVALID, None, None, 7),
    ]
    assert says.asked == [("a", 10.0), ("b", 10.0), ("c", 10.0)]


def test_the_lowest_heights_are_kept_and_known_again(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    says = Says(a={1.0: Answer(PLACED, 1.0, 7), 10.0: Answer(PLACED, 9.9, 7)})
    found = rows_of(TWO, {"a": fake("a")}, [1.0, 10.0], says, read_known(path))
    kept = keep_known(path, {}, [TWO], found)
    assert (
        read_known(path)
        == kept
        == {"two": {"buffers": 2, "load": 6, "height": 7, "planner": "a", "given": 1.0, "digest": TWO.digest}}
    )
    higher = Says(b={1.0: Answer(PLACED, 1.0, 9), 10.0: Answer(LATE)})
    assert rows(higher, timed=True, known=kept) == [("b", 1.0, PLACED, 9, 1.5, 7), ("b", 10.0, PLACED, 9, 1.5, 7)]
    worse = rows_of(TWO, {"b": fake("b")}, [1.0, 10.0], higher, kept)
    assert keep_known(path, kept, [TWO], worse) == kept
    other = Instance.of(Trace.from_lifetimes([4, 2], [0, 2], [2, 3], name="two"), "twos")
    assert rows_of(other, {"b": fake("b")}, [1.0], higher, kept)[0]["best"] == 9  # it only has the name


@pytest.mark.parametrize("text", ["", "[]", '["a"]', '{"a": 1}', '{"a": {"height": "x"}}'])
def test_a_file_of_other_things_is_no_file_of_heights(tmp_path: Path, text: str) -> None:
    (tmp_path / "known.json").write_text(text)
    with pytest.raises(ValueError, match=r"known\.json: holds no heights of instances$"):
        read_known(tmp_path / "known.json")


def test_lifetimes_that_wrap_become_the_whole_iteration() -> None:
    made = Instance.of(Trace.from_lifetimes([4, 2, 0], [1, 0, 0], [4, 1, 1], n=3), "arcs")
    b = made.trace.buffers
    assert (b.size.tolist(), b.start.tolist(), b.end.tolist(), made.wrapped) == ([4, 2], [0, 0], [3, 1], 1)


def test_a_trace_is_rewritten_and_a_bare_instance_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    trace = io.bundled("mlp3")
    found = list(of_file(trace, "given", [100, 90, 1]))
    assert [(one.trace.name, one.family) for one in found] == [
        ("mlp3_b128_sgd", "given"),
        ("mlp3_b128_sgd@90", "rewritten"),
    ]
    assert found[1].trace.n > found[0].trace.n  # there are copies
    told = "gpumem: mlp3_b128_sgd: AutoSwap has no plan for 1 % of the peak live bytes: left out\n"
    assert capsys.readouterr().err == told
    assert [one.trace.name for one in of_file(TWO.trace, "given", [80])] == ["two"]
    assert [one.trace.name for one in of_file(trace, "given", [])] == ["mlp3_b128_sgd"]


def test_a_folder_is_searched_to_its_depths(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.csv", "deep/a.json.gz", "README.md"):
        (tmp_path / name).write_text("")
    assert [path.name for path in in_folder(str(tmp_path))] == ["b.csv", "a.json.gz"]
    with pytest.raises(ValueError, match=r"^--instances: "):
        in_folder(str(tmp_path / "none"))


@pytest.mark.parametrize("text", ["", "0:1", "30:0", "30:1,2", "x"])
def test_bad_numbers_of_generated_instances_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--perfect: "):
        generated(text)


def test_generated_instances_have_seeds_from_0_on() -> None:
    assert [one.trace.name for one in generated("8, 9:2")] == ["perfect8_0", "perfect8_1", "perfect9_0", "perfect9_1"]
    assert {one.trace.peak_live_bytes for one in generated("8")} == {2**20}
