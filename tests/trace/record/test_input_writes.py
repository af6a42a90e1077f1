"""The SNU thesis' pattern test, beside iteration detection: where they agree, and what the printed test misses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gpumem.io import bundled, load
from gpumem.swap.snu import pattern
from gpumem.trace import Trace
from gpumem.trace.record.period import BlockEvent, detect
from tests.conftest import shared


def as_printed(records: Sequence[Hashable], writes: Sequence[int]) -> tuple[int, int] | None:
    """Figure 6 word by word: `(counter - idx) / 2` in whole numbers, odd or even."""
    for c in writes:
        for i in [w for w in writes if w < c]:
            p = (c - i) // 2
            if p and records[i : i + p] == records[c - p : c]:
                return i, p
    return None


def of(text: str) -> tuple[list[str], list[int]]:
    """Records, one a word; those that write an input begin with W."""
    words = text.split()
    return words, [i for i, word in enumerate(words) if word[0] == "W"]


def test_found_at_the_write_that_begins_the_third_iteration() -> None:
    assert pattern(*of("m n " + 2 * "W a b c ")) is None
    assert pattern(*of("m n " + 2 * "W a b c " + "W")) == (2, 4)
    assert pattern(*of("m n W a " + 2 * "W a b c ")) is None
    assert pattern(*of("m n W a " + 3 * "W a b c " + "W")) == (4, 4)
    assert pattern([], []) is None


def test_an_odd_distance_leaves_a_record_out() -> None:
    step = "W a b W a "  # two batches by the same ops, and something between them
    assert as_printed(*of(3 * step)) == (0, 2)
    assert pattern(*of(3 * step)) == (0, 5)


def test_an_input_written_in_slices_passes_for_an_iteration() -> None:
    step = "Wx Wx Wx a b c "
    assert pattern(*of("m " + 3 * step)) == (1, 1)  # the period is 6
    blocks = {"x": 1, "a": 2, "b": 3, "c": 4}
    events = [BlockEvent("malloc", b, 4) for b in blocks.values()]
    events += [BlockEvent("write", blocks[word[-1]]) for word in (4 * step).split()]
    period = detect(events)
    assert period is not None and period.length == 6


def test_tensors_that_are_made_anew_never_repeat() -> None:
    records = [(word, turn if word in "xy" else 0) for turn in range(9) for word in "xwy"]
    assert pattern(records, range(0, 27, 3)) is None
    assert pattern([word for word, _ in records], range(0, 27, 3)) == (0, 3)


@given(st.lists(st.sampled_from("Wab"), max_size=30))
def test_it_is_a_repetition_and_no_multiple(text: list[str]) -> None:
    writes = [i for i, word in enumerate(text) if word == "W"]
    squares = [
        (c, i) for c in writes for i in writes if i < c and (c - i) % 2 == 0 and text[i : (c + i) // 2] * 2 == text[i:c]
    ]
    found = pattern(text, writes)
    assert (found is None) == (not squares)
    if found is not None:
        assert (sum(found) + found.length, found.start) == min(squares)
        word = text[found.start : sum(found)]
        assert all(word != word[k:] + word[:k] for k in range(1, len(word)))


@pytest.mark.parametrize("writes", [[-1], [3], [1, 0], [1, 1]])
def test_bad_writes_are_refused(writes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^writes: "):
        pattern([*"abc"], writes)


def held_against_detection(trace: Trace, turns: int = 3) -> None:
    """Both find the iteration as long as it is: one by records of sizes and kinds, the other by accesses of blocks."""
    b, ops = trace.buffers, trace.ops
    one = [(op.name, *((b.size[j], b.kind[j]) for j in (*op.reads, *op.writes))) for op in ops]
    inputs = {j for j, kind in enumerate(b.kind) if kind == "input"}
    first = next(i for i, op in enumerate(ops) if inputs & {*op.reads, *op.writes})
    records = [record for turn in range(turns) for record in one]
    found = pattern(records, [first + turn * trace.n for turn in range(turns)])
    assert found == (first, trace.n)
    events = [BlockEvent("malloc", j, 8) for j in range(len(b))]
    for _ in range(turns):
        for op in ops:
            events += [BlockEvent("read", j) for j in op.reads] + [BlockEvent("write", j) for j in op.writes]
    period = detect(events)
    assert period is not None and period.length == sum(len(op.reads) + len(op.writes) for op in ops)


@pytest.mark.jit  # nothing of it is compiled
def test_bundled_traces() -> None:
    for name in ("vgg16", "resnet18", "mlp3"):
        held_against_detection(bundled(name))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_shared_traces(path: Path) -> None:
    held_against_detection(load(path).trace)
