"""Iteration detection: hand-made streams, and the recorded traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpumem.trace.record import Period
from gpumem.trace.record.period import BlockEvent, Detector, detect

TRACES = Path(__file__).resolve().parents[4] / "shared/data/traces"

# ---------------------------------------------------------------------------- hand-made streams


def script(text: str) -> list[BlockEvent]:
    """Turn `"+a8 wa ra -a"` into events: + malloc (with its bytes), - free, r read, w write."""
    names: dict[str, int] = {}
    kinds = {"+": "malloc", "-": "free", "r": "read", "w": "write"}
    return [
        BlockEvent(kinds[word[0]], names.setdefault(word[1], len(names)), int(word[2:] or 0)) for word in text.split()
    ]


def found(text: str, **options: int) -> tuple[int, int] | None:
    period = detect(script(text), **options)
    return None if period is None else (period.start, period.length)


STEP = "+x8 wx rw +y4 wy rx ry -y ww -x "  # one iteration: an input, a temporary, a parameter


def test_plain_iteration() -> None:
    # The first touch of w is far from its making, so the first iteration is no copy of the second.
    assert found("+w4 " + 2 * STEP) is None
    assert found("+w4 " + 3 * STEP) == (4, 10)


def test_found_at_once_and_kept() -> None:
    events = script("+w4 " + 4 * STEP)
    detector = Detector()
    answers = [detector.push(e) for e in events]
    first = next(i for i, p in enumerate(answers) if p)
    assert first == 4 + 2 * 10 - 1
    assert answers[:first] == [None] * first
    assert set(answers[first:]) == {Period(4, 10, crossing=(0, 1), successors=(0, 1))}
    assert detector.period is answers[-1]
    with pytest.raises(ValueError, match=r"event 41: free of block 2, which is not live"):
        detector.push(BlockEvent("free", 2))


def test_first_iteration_makes_momentum() -> None:
    cold = STEP.replace("ww", "+m4 wm ww")
    warm = STEP.replace("ww", "rm wm ww")
    # From the write of m on, the first iteration is like the others: x, m and w are live there.
    expected = Period(10, 12, crossing=(0, 3, 1), successors=(0, 3, 1))
    assert detect(script("+w4 " + cold + 2 * warm)) == expected


def test_block_that_crosses_the_boundary_has_a_successor() -> None:
    """A loss that is read one iteration later: made anew in each, one at a time."""
    events = [BlockEvent("malloc", 0, 4), BlockEvent("malloc", 1, 4)]
    for loss in range(2, 6):
        events += [BlockEvent("read", loss - 1), BlockEvent("free", loss - 1)]
        events += [BlockEvent("malloc", loss, 4), BlockEvent("write", loss), BlockEvent("read", 0)]
    # The first iteration reads 0 farther from its making than the others from their last read.
    assert detect(events) == Period(7, 5, crossing=(0, 3), successors=(0, 4))


def test_layers_and_optimizer_steps_are_no_iterations() -> None:
    n = 12
    weights, grads = range(n), range(100, 100 + n)
    one: list[BlockEvent] = []

    def iteration(r: int) -> list[BlockEvent]:
        acts = [1000 * (r + 1) + i for i in range(n + 1)]
        events = [BlockEvent("malloc", acts[0], 8), BlockEvent("write", acts[0])]
        for i in range(n):  # identical layers
            events += [
                BlockEvent("malloc", acts[i + 1], 8),
                BlockEvent("read", acts[i]),
                BlockEvent("read", weights[i]),
            ]
            events += [BlockEvent("write", acts[i + 1])]
        for i in reversed(range(n)):
            events += [BlockEvent("read", acts[i + 1]), BlockEvent("read", acts[i]), BlockEvent("write", grads[i])]
            events += [BlockEvent("free", acts[i + 1])]
        events += [BlockEvent("free", acts[0])]
        for i in range(n):  # identical steps, each with a temporary of its own
            tmp = 1000 * (r + 1) + 500 + i
            events += [BlockEvent("malloc", tmp, 4), BlockEvent("read", grads[i]), BlockEvent("write", tmp)]
            events += [BlockEvent("read", tmp), BlockEvent("write", weights[i]), BlockEvent("free", tmp)]
        return events

    setup = [BlockEvent("malloc", b, 4) for b in (*weights, *grads)]
    for r in range(3):
        one = iteration(r)
        setup += one
    period = detect(setup)
    assert period is not None
    assert period.length == len(one)
    assert period.crossing[: 2 * n] == (*weights, *grads)


def test_operations_in_place_are_no_iterations() -> None:
    """They meet all conditions but the last; so do steps that are as short as this one."""
    weights = "+b4 +c4 +d4 +e4 +f4 +g4 +h4 "
    step = "+a8 wa ra wa ra wa ra wa rb -a "
    assert found(weights + 3 * step) == (16, 10)
    assert found(weights[8:] + 3 * step) == (8, 2)  # when it makes up half of the stream


def test_in_place_at_the_very_beginning_needs_min_length() -> None:
    text = "+w4 ww rw ww rw ww rw ww " + 3 * STEP
    assert found(text) == (1, 2)
    assert found(text, min_length=3) == (11, 10)


def test_min_length_refuses_multiples_of_a_shorter_loop() -> None:
    """Micro-steps, then an update: with `min_length` it is the whole, not two or three micro-steps."""
    micro = "+x8 wx rx rw wg -x "
    step = 8 * micro + "rg ww ww "
    assert found("+w4 +g4 " + 4 * step) == (7, 6)  # micro-steps pass for iterations
    assert found("+w4 +g4 " + 4 * step, min_length=7) == (7, 8 * 6 + 3)
    assert found("+w4 +g4 " + 40 * micro, min_length=7) is None


def test_blocks_that_take_turns_need_two_rounds() -> None:
    """Two buffers touched as A B A B, B A B A: the signatures repeat after 4, the blocks after 8."""
    turns = "ra rb ra rb rb ra rb ra "
    assert found("+a4 +b4 " + 4 * turns, min_length=3) == (4, 8)


def test_blocks_that_take_turns_where_others_did_not() -> None:
    """A loop of the same length that was one does not stand for those that follow."""
    loop, turns = "rc wc rd wd ", "ra rb ra rb rb ra rb ra "
    text = "+a4 +b4 +c4 +d4 +e4 +f4 +g4 +h4 " + 3 * loop
    assert found(text + 3 * turns, min_length=5) == (28, 8)


def test_the_warm_up_may_look_like_an_iteration() -> None:
    """`rz` has the signature of `ru`, and acts on a block that no iteration knows: one event later."""
    warm = "+z4 +t4 rz rz -t +u4 ru "
    rest = "ru -u +v4 rv rv -v +w4 rw "
    assert found(warm + rest[: rest.index("rv -v")]) is None
    assert found(warm + rest) == (4, 4)


def test_block_that_lives_longer_than_a_repetition() -> None:
    """Each block lives for 1.5 repetitions of `+ -`: the circle needs two of them."""
    events = [BlockEvent("malloc", 0, 4)]
    for i in range(1, 8):
        events += [BlockEvent("malloc", i, 4), BlockEvent("free", i - 1)]
    assert detect(events) == Period(3, 4, crossing=(3,), successors=(5,))


def test_leak_is_no_iteration() -> None:
    for size in (4, 0):
        leak = [BlockEvent("malloc", 0, 4)]
        for i in range(1, 10):
            leak += [BlockEvent("malloc", i, size), BlockEvent("write", 0)]
        assert detect(leak) is None


def test_ids_may_come_back() -> None:
    fresh = script("+w4 " + 3 * STEP)
    names = {0: 0, 1: 77, 2: 77_000}
    again = [BlockEvent(e.kind, names[e.block], e.size) for e in fresh]
    one, other = detect(fresh), detect(again)
    assert one is not None and other is not None
    assert (other.start, other.length) == (one.start, one.length)
    assert other.crossing == tuple(names[b] for b in one.crossing)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("+a4 rb", r"event 1: read of block 1, which is not live"),
        ("wa", r"event 0: write of block 0, which is not live"),
        ("+a4 -a -a", r"event 2: free of block 0, which is not live"),
        ("+b4 +a4 ra +a4", r"event 3: malloc of block 1, which is live since event 1"),
        ("+a4 +b-3", r"event 1: malloc of block 1 of -3 bytes"),
    ],
)
def test_impossible_events(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detect(script(text))


def test_unknown_kind_and_option() -> None:
    with pytest.raises(ValueError, match=r"event 0: kind 'copy' is not one of malloc, free, read, write"):
        detect([BlockEvent("copy", 0)])
    with pytest.raises(ValueError, match="min_length 0 is not at least 1"):
        Detector(min_length=0)


def test_a_refused_event_does_not_count() -> None:
    detector, period = Detector(), None
    for event in script("+w4 " + 3 * STEP):
        with pytest.raises(ValueError, match="which is not live"):
            detector.push(BlockEvent("read", 99))
        period = detector.push(event) or period
    assert period == detect(script("+w4 " + 3 * STEP))


# ---------------------------------------------------------------------------- recorded traces


def stream(trace: dict[str, Any], more: int = 3) -> tuple[list[BlockEvent], int, int]:
    """Play a recorded trace, then its last iteration `more` times again.

    Returns the events, how many make the blocks that were there before, and the events of the last
    iteration. What the last iteration makes gets a fresh id in each round; what it takes over from the one
    before is, from the second round on, what that round's predecessor made at the same place.
    """
    buffers, ops, bounds = trace["buffers"], trace["ops"], trace["meta"]["iterations"]
    begin, end = bounds[-1]
    length = end - begin
    heirs: dict[tuple[int, int], list[int]] = {}  # (op in the iteration, bytes) -> outliving buffers
    for b in buffers:
        if b["alloc"] >= begin and b["free"] is None:
            heirs.setdefault((b["alloc"] - begin, b["bytes"]), []).append(b["id"])
    taken_over = {}
    for b in buffers:
        if begin - length <= b["alloc"] < begin and b["free"] is not None and b["free"] >= begin:
            taken_over[b["id"]] = heirs[b["alloc"] - begin + length, b["bytes"]].pop(0)
    events = [BlockEvent("malloc", b["id"], b["bytes"]) for b in buffers if b["alloc"] < 0]
    before = len(events)

    def block(b: int, r: int) -> int:
        if buffers[b]["alloc"] >= begin:
            return b + r * len(buffers)
        return block(taken_over[b], r - 1) if r and b in taken_over else b

    def run(first: int, last: int, r: int) -> None:
        for op in ops[first:last]:
            events.extend(BlockEvent("malloc", block(b, r), buffers[b]["bytes"]) for b in op["alloc"])
            events.extend(BlockEvent("read", block(b, r)) for b in op["reads"])
            events.extend(BlockEvent("write", block(b, r)) for b in op["writes"])
            events.extend(BlockEvent("free", block(b, r)) for b in op["free"])

    for first, last in bounds:
        run(first, last, 0)
    for r in range(1, more + 1):
        run(begin, end, r)
    size = sum(len(op[k]) for op in ops[begin:end] for k in ("alloc", "reads", "writes", "free"))
    return events, before, size


def test_stream_hands_buffers_over() -> None:
    """A buffer made in one iteration and freed in the next, as no recorded trace has it."""
    op: dict[str, list[int]] = {"alloc": [], "reads": [], "writes": [], "free": []}
    trace = {
        "meta": {"iterations": [[0, 2], [2, 4]]},
        "buffers": [
            {"id": 0, "bytes": 4, "alloc": -1, "free": 0},
            {"id": 1, "bytes": 8, "alloc": 1, "free": 2},
            {"id": 2, "bytes": 8, "alloc": 3, "free": None},
            {"id": 3, "bytes": 8, "alloc": -1, "free": None},
        ],
        "ops": [
            op | {"reads": [0], "free": [0]},
            op | {"alloc": [1], "reads": [3], "writes": [1]},
            op | {"reads": [1], "free": [1]},
            op | {"alloc": [2], "reads": [3], "writes": [2]},
        ],
    }
    events, before, size = stream(trace)
    assert (before, size) == (2, 5)
    assert [e.block for e in events if e.kind == "free"] == [0, 1, 2, 6, 10]
    assert detect(events) == Period(6, 5, crossing=(3, 2), successors=(3, 6))


def names() -> list[str]:
    return sorted(f.name.removesuffix(".json.gz") for f in TRACES.glob("*.json.gz"))


def load(name: str) -> dict[str, Any]:
    with gzip.open(TRACES / f"{name}.json.gz") as file:
        return json.load(file)  # type: ignore[no-any-return]


recorded = pytest.mark.parametrize(
    "name", names() or [pytest.param("", marks=pytest.mark.skip("no recorded traces here"))]
)


@pytest.mark.jit  # nothing of it is compiled
@pytest.mark.shared
@recorded
def test_recorded_iteration(name: str) -> None:
    trace = load(name)
    events, before, size = stream(trace)
    period = detect(events)
    assert period is not None
    assert period.length == size
    irregular = len(trace["meta"]["iterations"]) - 2  # the cold iteration, where there is one
    assert period.end - before <= (3 + 1.1 * irregular) * size
    # What crosses the boundary is what was there before, and the optimizer's state, wherever it is cut.
    kept = {b["id"] for b in trace["buffers"] if b["alloc"] < 0 or b["kind"] == "opt_state"}
    kept = {b for b in kept if trace["buffers"][b]["free"] is None}
    lasting = {a for a, b in zip(period.crossing, period.successors, strict=True) if a == b}
    assert lasting == kept
    from_mallocs_and_frees(events, before, size, cold="cold" in name)
    after_initialisation_in_place(events, before, size)


def from_mallocs_and_frees(events: list[BlockEvent], before: int, size: int, *, cold: bool) -> None:
    """What SmartPool alone records; two regular iterations are enough."""
    heap = [e for e in events if e.kind in ("malloc", "free")]
    period = detect(heap)
    assert period is not None
    assert period.length == sum(e.kind in ("malloc", "free") for e in events[-size:])
    if not cold:
        assert period.start == before


def after_initialisation_in_place(events: list[BlockEvent], before: int, size: int) -> None:
    start: list[BlockEvent] = []
    for e in events[:before]:
        start += [e, BlockEvent("write", e.block)] + 4 * [BlockEvent("read", e.block), BlockEvent("write", e.block)]
    period = detect(start + events[before:], min_length=32)
    assert period is not None
    assert period.length == size
