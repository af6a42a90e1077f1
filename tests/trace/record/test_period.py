"""Iteration detection: hand-made streams, a naive oracle, hostile streams, and the recorded traces."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import gpumem.trace.record.period
from gpumem.trace.record._repeat_search import Period
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


# ---------------------------------------------------------------------------- naive oracle


class Naive:
    """The definition, word for word, over a whole stream; cubic."""

    def __init__(self, events: Sequence[BlockEvent]) -> None:
        self.events = events
        self.sign: list[tuple[str, int]] = []
        self.made: list[int] = []  # the malloc of the event's block
        for i, e in enumerate(events):
            past = [j for j in range(i) if events[j].block == e.block]
            made = i if e.kind == "malloc" else max(j for j in past if events[j].kind == "malloc")
            value = e.size if e.kind == "malloc" else i - (made if e.kind == "free" else past[-1])
            self.sign.append((e.kind, value))
            self.made.append(made)

    def live(self, n: int) -> dict[int, int]:
        """Malloc -> block, of what is live after `n` events."""
        live: dict[int, int] = {}
        for i in range(n):
            if self.events[i].kind == "malloc":
                live[i] = self.events[i].block
            elif self.events[i].kind == "free":
                del live[self.made[i]]
        return live

    def repeats(self, n: int, p: int) -> int:
        """The first event of the longest stretch of period `p` that ends after `n` events."""
        i = n
        while i > p and self.sign[i - 1] == self.sign[i - 1 - p]:
            i -= 1
        return i - p

    def is_loop(self, n: int, p: int) -> bool:
        start, middle = n - 2 * p, n - p
        if start < 0 or self.repeats(n, p) > start:
            return False
        if any(kind != "malloc" and value > p for kind, value in self.sign[middle:n]):
            return False
        if len(self.live(n)) != len(self.live(middle)):
            return False
        twins = [(self.made[i - p], self.made[i]) for i in range(middle, n)]
        return all(a + p == b if b >= start else a == b for a, b in twins)

    def is_iteration(self, n: int, p: int) -> bool:
        if not self.is_loop(n, p) or n < 2 * self.repeats(n, p):
            return False
        divisors = [d for d in range(1, p) if p % d == 0]
        return not any(self.repeats(n, d) <= n - 2 * p and self.is_loop(n, d) for d in divisors)

    def detect(self, min_length: int = 1) -> Period | None:
        for n in range(2, len(self.events) + 1):
            for p in range(min_length, n // 2 + 1):
                if self.is_iteration(n, p):
                    return self.describe(n, p)
        return None

    def describe(self, n: int, p: int) -> Period:
        before, after = self.live(n - p), self.live(n)
        pairs = [(b, after[m] if m in after else after[m + p]) for m, b in sorted(before.items())]
        return Period(n - 2 * p, p, tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def play(actions: Iterable[tuple[str, int, int]], reuse: bool = False) -> list[BlockEvent]:
    """Make a legal stream of any list of (kind, which live block, size); `reuse` takes the least free id."""
    live: list[int] = []
    events: list[BlockEvent] = []
    for kind, which, size in actions:
        if kind == "malloc" or not live:
            ids = (b for b in range(len(events) + 1) if b not in live)
            block = next(ids) if reuse else len(events)
            live.append(block)
            events.append(BlockEvent("malloc", block, size))
        else:
            block = live[which % len(live)]
            events.append(BlockEvent(kind, block))
            if kind == "free":
                live.remove(block)
    return events


def check(events: list[BlockEvent], min_length: int) -> Period | None:
    got = detect(events, min_length=min_length)
    assert got == Naive(events).detect(min_length)
    return got


ACTION = st.tuples(st.sampled_from(["malloc", "free", "read", "read", "write"]), st.integers(-3, 2), st.integers(0, 1))
WORD = st.lists(ACTION, min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(st.lists(ACTION, max_size=12), WORD, st.integers(1, 9), st.lists(ACTION, max_size=4), st.data())
def test_repeated_words_agree_with_the_oracle(
    prefix: list[Any], word: list[Any], times: int, suffix: list[Any], data: st.DataObject
) -> None:
    """Mallocs pile up, blocks take turns, loops sit in loops: `which` counts among the live ones."""
    events = play(prefix + times * word + suffix + word, data.draw(st.booleans()))
    check(events[:90], data.draw(st.sampled_from([1, 1, 2, 3, 5])))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[BlockEvent], int]:
    """A training job, and the events of its iteration: parameters, momentum, inner loops, warm-up."""
    params, carried, seed = draw(st.integers(0, 3)), draw(st.booleans()), draw(st.integers(0, 3))
    warm = play(draw(st.lists(ACTION, max_size=6)))
    body = draw(st.lists(st.tuples(st.sampled_from("twgl"), st.integers(0, 2), st.integers(1, 3)), max_size=4))
    events, fresh = list(warm), iter(range(1000, 9999))
    weights = [next(fresh) for _ in range(params)]
    events += [BlockEvent("malloc", w, 4) for w in weights]
    loss, momentum = next(fresh), [next(fresh) for _ in range(params)]
    events += [BlockEvent("malloc", loss, 2)] * carried
    size = 0
    for r in range(6):
        begin = len(events)
        data = next(fresh)
        events += [BlockEvent("malloc", data, 7), BlockEvent("write", data)]
        for what, which, times in body:
            if what == "t":  # temporaries of one size
                for t in [next(fresh) for _ in range(times)]:
                    events += [BlockEvent("malloc", t, seed), BlockEvent("read", data), BlockEvent("free", t)]
            elif what == "w" and params:
                events += [BlockEvent("read", weights[which % params]), BlockEvent("write", data)] * times
            elif what == "l" and carried:
                new = next(fresh)
                events += [BlockEvent("read", loss), BlockEvent("free", loss), BlockEvent("malloc", new, 2)]
                loss = new
            else:
                events += [BlockEvent("read", data), BlockEvent("write", data)] * times
        for w, m in zip(weights, momentum, strict=True):
            events += [BlockEvent("malloc", m, 4)] * (r == 0) + [BlockEvent("read", m), BlockEvent("write", w)]
        events += [BlockEvent("free", data)]
        size = len(events) - begin
    return events, size


@settings(max_examples=100, deadline=None)
@given(jobs(), st.sampled_from([1, 2, 6]))
def test_jobs_agree_with_the_oracle(job: tuple[list[BlockEvent], int], min_length: int) -> None:
    events, _ = job
    check(events[:120], min_length)


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_an_iteration_longer_than_all_loops_is_found(job: tuple[list[BlockEvent], int]) -> None:
    """With `min_length`, nothing passes for the iteration but itself."""
    events, size = job
    period = detect(events, min_length=size)
    assert period is not None
    assert period.length == size


# ---------------------------------------------------------------------------- hostile streams


def fibonacci(n: int) -> list[int]:
    a, b = [0], [0, 1]
    while len(b) < n:
        a, b = b, b + a
    return b[:n]


def reads(blocks: int, times: int) -> list[BlockEvent]:
    return [BlockEvent("malloc", b, 1) for b in range(blocks)] + [
        BlockEvent("read", b) for _ in range(times) for b in range(blocks)
    ]


HOSTILE: dict[str, Callable[[int], list[BlockEvent]]] = {
    "mallocs of one size": lambda n: [BlockEvent("malloc", i, 1) for i in range(n)],
    "reads of one block": lambda n: reads(1, n - 1),
    "reads of all in turn": lambda n: reads(n // 3, 2),
    "a rare other size": lambda n: [BlockEvent("malloc", i, int(i % 1000 == 0)) for i in range(n)],
    "ever rarer": lambda n: [BlockEvent("malloc", i, int(math.isqrt(i) ** 2 == i)) for i in range(n)],
    "Fibonacci": lambda n: [BlockEvent("malloc", i, c) for i, c in enumerate(fibonacci(n))],
    "Thue-Morse": lambda n: [BlockEvent("malloc", i, i.bit_count() % 2) for i in range(n)],
    "optimizer": lambda n: (
        [BlockEvent("malloc", i, 8) for i in range(n // 4)]
        + [BlockEvent(k, i + j) for i in range(0, n // 4, 2) for k, j in (("read", 0), ("read", 1), ("write", 1))]
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_streams_take_n_log_n(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts comparisons of hashes and rows looked at, not seconds."""
    work = [0]
    repeats, odd_row = (
        gpumem.trace.record._repeat_search._Search._repeats,
        gpumem.trace.record._repeat_search._Search._odd_row,
    )

    def counted_repeats(self: Any, p: int, length: int) -> bool:
        work[0] += 1
        return repeats(self, p, length)

    def counted_odd_row(self: Any, p: int) -> int:
        row = odd_row(self, p)
        work[0] += self.now - row if row else p
        return row

    monkeypatch.setattr(gpumem.trace.record._repeat_search._Search, "_repeats", counted_repeats)
    monkeypatch.setattr(gpumem.trace.record._repeat_search._Search, "_odd_row", counted_odd_row)
    n = 8000
    detect(HOSTILE[name](n), min_length=n)
    assert work[0] <= 6 * n * math.log2(n)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_streams_of_100_000_events_finish(name: str) -> None:
    events = HOSTILE[name](100_000)
    assert detect(events, min_length=len(events)) is None


def test_reads_in_turn_are_one_iteration() -> None:
    assert detect(reads(3000, 2)) == Period(3000, 3000, tuple(range(3000)), tuple(range(3000)))


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
