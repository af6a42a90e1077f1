"""The search for repetitions finds what the definition, taken literally, finds, and hostile streams cost n log n."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import gpumem.trace.record.period
from gpumem.trace.record import Period
from gpumem.trace.record.period import BlockEvent, detect


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
