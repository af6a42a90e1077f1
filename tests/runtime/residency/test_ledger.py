"""Rows of a report: what was done between their first op and their last, whenever that is known."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given, strategies as st

from gpumem.runtime.residency.ledger import KEPT, Ledger
from tests.runtime.residency.programs import Cell, Told

COUNTS = ("out", "back", "recomputed", "misses", "evictions")


class Day:
    """A ledger whose clock goes on by 10 ns at each look, on a memory in which things happen."""

    def __init__(self) -> None:
        self.memory, self.time = Told(), 0
        self.ledger = Ledger(self.memory, self.now)

    def now(self) -> int:
        self.time += 10
        return self.time

    def op(self, counts: tuple[int, ...] = (), held: int = 0) -> None:
        """An op for which so much is done, and after which so much is held."""
        for name, count in zip(COUNTS, counts):
            setattr(self.memory.counts, name, getattr(self.memory.counts, name) + count)
        self.memory.held = held
        self.memory.note()
        self.ledger.ops += 1


@given(st.data())
def test_a_row_sums_what_was_done_for_its_ops(data: st.DataObject) -> None:
    """Steps may end after any op, and rows with any step: each row has what its own ops had."""
    day, mine, done = Day(), list[tuple[int, ...]](), list[tuple[tuple[int, ...], ...]]()
    sizes = list[list[int]]([[]])
    for _ in range(data.draw(st.integers(1, 12))):
        counts = tuple(data.draw(st.integers(0, 3)) for _ in COUNTS)
        held = data.draw(st.integers(0, 9))
        day.op(counts, held)
        mine.append(counts)
        sizes[-1].append(held)
        if data.draw(st.booleans()):
            day.ledger.step()
        if data.draw(st.integers(0, 3)) == 3:
            day.ledger.close("planned")
            done.append(tuple(mine))
            sizes.append([])
            mine = []
    rows = [*day.ledger.rows]
    assert [astuple(row)[4:9] for row in rows] == [tuple(map(sum, zip(*ops))) for ops in done]
    assert [(row.number, row.ops) for row in rows] == [*enumerate(map(len, done))]
    for row, before, held in zip(rows, [[0], *sizes], sizes):
        assert row.peak == max([before[-1], *held])  # what the row before it left is there when it begins
    open_row = day.ledger.open_row("planned")
    assert [(row.number, row.ops) for row in open_row] == ([(len(done), len(mine))] if mine else [])
    assert day.ledger.length == len(mine)


def test_a_row_may_be_closed_before_the_last_ops() -> None:
    day = Day()
    for k in range(5):
        day.op((k,))
        if k != 1:  # ops 1 and 2 are one step
            day.ledger.step()
    row = day.ledger.close("native", but=2)
    assert row is not None and (row.ops, row.moved_out, day.ledger.length) == (3, 3, 2)
    assert day.ledger.close("native", but=2) is None and day.ledger.length == 2
    day.op((9,))
    (rest,) = day.ledger.open_row("")
    assert (rest.ops, rest.moved_out, rest.number) == (3, 16, 1)
    split = Day()
    for k in range(3):
        split.op((k,))
        if k != 1:
            split.ledger.step()
    row = split.ledger.close("native", but=1)  # op 1 is of one step with op 2
    assert row is not None and row.ops == 1 and split.ledger.length == 2


def test_a_row_lasts_from_the_end_of_the_one_before() -> None:
    day = Day()  # began at 10
    day.op()
    day.ledger.step()  # 20
    day.op()
    first = day.ledger.close("planned")  # 30
    day.op()
    day.ledger.step()  # 40
    day.op()
    second = day.ledger.close("planned", but=1)  # the step at 50 is the next row's
    third = day.ledger.close("planned")
    found = [round(row.seconds * 1e9) for row in (first, second, third) if row is not None]
    assert found == [20, 10, 10]
    day.ledger.start()  # 60
    day.op()
    (row,) = day.ledger.open_row("")  # 70
    assert round(row.seconds * 1e9) == 10 and row.number == 3


def test_what_was_done_before_a_start_is_no_rows() -> None:
    day = Day()
    day.op((5,) * 5, held=9)
    day.ledger.step()
    day.op((5,) * 5, held=3)
    day.ledger.start()
    assert (day.ledger.ops, day.ledger.length) == (0, 0)
    day.op((1,), held=2)
    row = day.ledger.close("")
    assert row is not None and (row.ops, row.moved_out, row.peak) == (1, 1, 3)


@pytest.mark.parametrize(("misses", "evictions", "state"), [(0, 0, "native"), (1, 0, "on demand"), (0, 1, "on demand")])
def test_a_row_without_a_state_is_told_by_what_was_done(misses: int, evictions: int, state: str) -> None:
    day = Day()
    day.op((0, 0, 0, misses, evictions))
    row = day.ledger.close("")
    assert row is not None and row.state == state


def test_what_was_alive_all_the_time() -> None:
    day = Day()
    cells = [Cell(k, 10) for k in range(3)]
    for cell in cells:
        day.memory.arrive(cell)
    day.ledger.start()
    assert day.ledger.least() == 30
    day.op()
    day.memory.dead.extend(cells[:2])
    day.memory.reap()
    day.ledger.step()
    day.memory.arrive(cells[0])
    day.op()
    assert day.ledger.least() == 10
    day.ledger.step()
    day.ledger.close("planned")
    assert day.ledger.least() == 20


def test_rows_that_are_kept() -> None:
    day = Day()
    for _ in range(KEPT + 2):
        day.op()
        day.ledger.close("planned")
    assert KEPT == 1000 and [row.number for row in day.ledger.rows] == [*range(2, KEPT + 2)]
