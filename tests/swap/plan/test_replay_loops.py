"""The loops that find what has to be recomputed, as plain Python, against sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.swap.plan import replay
from gpumem.swap.plan.replay import CHANGED, DEAR, FREE, Closure
from gpumem.swap.plan.values import FINE, Origins
from gpumem.trace import Trace
from tests.plain import plain
from tests.strategies import steps

LOOPS = plain(replay)
LONG = 10**6


class Asked(NamedTuple):
    """Versions that are wanted at a place, what is off the device, until when the dead are held."""

    v: Origins
    rows: np.ndarray
    absent: np.ndarray
    until: np.ndarray
    kept: np.ndarray
    duration: np.ndarray

    def there(self, k: int, place: int) -> bool:
        """Whether read `k` finds what it found: in its buffer, or beside it, unless its op writes it."""
        b, v = int(self.v.read[k]), self.v
        op = int(np.searchsorted(v.read_ptr, k, side="right")) - 1
        beside = self.kept[b] == v.finds.stop[k] and b not in v.write[v.write_ptr[op] : v.write_ptr[op + 1]]
        return bool(beside or (not self.absent[b] and (place <= v.last[k] or (v.dies[k] and place <= self.until[b]))))

    def wanted(self) -> list[tuple[int, int]]:
        return [*zip(self.v.left.first[self.rows].tolist(), self.v.left.stop[self.rows].tolist())]

    def reads(self, op: int) -> range:
        return range(self.v.read_ptr[op], self.v.read_ptr[op + 1])

    def closed(self, place: int) -> tuple[set[int], set[int], dict[int, int]]:
        """What is recomputed, the reads that cannot be recomputed, and how far each chain goes."""
        v, stuck, ops, todo = self.v, set[int](), set[int](), list[int]()
        chains: dict[int, int] = {}
        needed = self.wanted()
        while needed or todo:
            for first, stop in needed:
                chains[first] = max(stop, chains.get(first, 0))
                todo += {*v.writer[first:stop].tolist()} - ops - {*todo}
            needed = []
            if todo:
                ops.add(op := todo.pop())
                for k in (k for k in self.reads(op) if not self.there(k, place)):
                    if v.finds.why[k] == FINE:
                        needed.append((int(v.finds.first[k]), int(v.finds.stop[k])))
                    else:
                        stuck.add(k)
        return ops, stuck, chains

    def changed(self, ops: set[int]) -> list[int]:
        """Which of the wanted values some of these ops change in place, beyond what made them."""
        v, found = self.v, []
        for k, (row, (first, stop)) in enumerate(zip(self.rows.tolist(), self.wanted())):
            b, chain = int(np.searchsorted(v.access_ptr, row, side="right")) - 1, {*v.writer[first:stop].tolist()}
            others = [
                x
                for x in ops - chain
                for j in range(v.write_ptr[x], v.write_ptr[x + 1])
                if v.write[j] == b and v.made[j] == v.writer[first]
            ]
            found += [k] * bool(others)
        return found

    def chase(self, m: Closure, place: int, least: int, most: int = LONG) -> tuple[int, int]:
        first, stop = self.v.left.first[self.rows], self.v.left.stop[self.rows]
        found: tuple[int, int] = LOOPS.chase(
            self.v, first, stop, place, least, self.absent, self.until, self.kept, m, self.duration, most
        )
        return found

    def marks(self) -> Closure:
        m: Closure = LOOPS.marks(np.zeros(self.v.n, np.bool_), len(self.v.writer))
        return m

    def ns(self, ops: set[int]) -> int:
        return sum(int(self.duration[x]) for x in ops)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Trace, Asked]:
    trace = draw(steps(max_layers=8))
    v, count = Origins.of(trace), len(trace.buffers)
    fine = [int(r) for r in np.flatnonzero(v.left.why == FINE)]
    rows = draw(st.lists(st.sampled_from(fine), min_size=1, max_size=3)) if fine else []
    away = draw(st.lists(st.integers(0, count - 1), max_size=3))
    absent, until = np.zeros(count, np.bool_), np.zeros(count, np.int64)
    absent[away] = True
    for b in draw(st.lists(st.integers(0, count - 1), max_size=count)):
        until[b] = draw(st.integers(0, trace.n))
    kept = np.full(count, -1)
    for k in draw(st.lists(st.integers(0, max(len(v.read) - 1, 0)), max_size=3)) if len(v.read) else []:
        kept[v.read[k]] = v.finds.stop[k]
    return trace, Asked(v, np.array(rows, np.int64), absent, until, kept, trace.ops.duration)


@given(st.data())
def test_a_closure_is_the_least_set_that_has_all_it_reads(data: st.DataObject) -> None:
    trace, a = data.draw(asked())
    place = data.draw(st.integers(1, trace.n))
    ops, stuck, chains = a.closed(place)
    m = a.marks()
    for turn in (1, 2):  # the second on the room of the first
        LOOPS.clear(m)
        assert not m.recomputed.any() and not m.reach.any() and not m.used[:4].any()
        found, op = a.chase(m, place, place)
        if stuck:
            assert found in stuck and found in a.reads(op)
            continue
        changed = a.changed(ops)
        assert (found, op) == ((CHANGED, changed[0]) if changed else (FREE, FREE))
        assert m.place.tolist() == [place, FREE]
        assert set(np.flatnonzero(m.recomputed)) == ops and LOOPS.ascending(m).tolist() == sorted(ops)
        assert m.used[:2].tolist() == [len(ops), 0] and m.used[3] == a.ns(ops)
        looked = sum(len(a.reads(x)) + 1 for x in ops) + sum(stop - first for first, stop in chains.items())
        assert m.used[4] == turn * looked


@given(st.data())
def test_a_closure_that_takes_too_long_is_left_at_once(data: st.DataObject) -> None:
    trace, a = data.draw(asked())
    place = data.draw(st.integers(1, trace.n))
    ops, stuck, _ = a.closed(place)
    most = data.draw(st.sampled_from([0, a.ns(ops) // 2, max(a.ns(ops) - 1, 0), a.ns(ops), a.ns(ops) + 1]))
    m = a.marks()
    found, op = a.chase(m, place, place, most)
    marked = m.op[: m.used[0]].tolist()
    assert m.used[3] == a.ns(set(marked))
    if (found, op) == (DEAR, DEAR):
        assert a.ns(ops) > most or stuck
        assert m.used[3] > most >= m.used[3] - a.duration[marked[-1]]
    else:
        whole = found in (FREE, CHANGED) and a.ns(ops) <= most and set(marked) == ops
        assert found in stuck or (not stuck and whole)


@given(st.data())
def test_what_is_not_there_sinks_the_place_no_further_than_it_must(data: st.DataObject) -> None:
    trace, a = data.draw(asked())
    place = data.draw(st.integers(1, trace.n))
    least = data.draw(st.integers(0, place))
    m = a.marks()
    found, op = a.chase(m, place, least)
    marked, why, last = set(m.op[: m.used[0]].tolist()), a.v.finds.why, a.v.last
    gone = [k for x in marked for k in a.reads(x) if why[k] != FINE and not a.there(k, place)]
    assert marked <= a.closed(place)[0]
    if found == CHANGED:
        return
    if found != FREE:
        assert found in gone and found in a.reads(op) and (a.absent[a.v.read[found]] or last[found] < least)
        return
    sunk, first = m.place.tolist()
    ops, stuck, _ = a.closed(sunk)
    assert least <= sunk <= place and not stuck and ops <= marked
    assert (sunk == place) == (first == FREE) == (not gone)
    if gone:
        assert first in gone and sunk <= last[first] and sunk in {last[k] for k in gone}


@pytest.mark.parametrize("dense", [0, 1, 2, 32])
def test_marked_ops_come_in_order_however_far_apart(dense: int) -> None:
    loops = plain(replay, DENSE=dense)
    for ops in ([], [5], [7, 3], [3, 4, 5, 0], [0, 19], [19, 2, 11], [*range(19, -1, -1)]):
        m = loops.marks(np.zeros(20, np.bool_), 1)
        m.op[: len(ops)], m.used[0] = ops, len(ops)
        m.recomputed[ops] = True
        assert loops.ascending(m).tolist() == sorted(ops)
