"""Swapping on demand by address: holes, runs of neighbours, an oracle that looks at each byte, simulated addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.simulator.machine import GIB, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import floor
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.snu import ByAddress, Tally, by_address
from gpumem.swap.snu.addresses import FITS
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.strategies import nets, traces


@dataclass
class Bytes:
    """The same, naively: which buffer has each byte, and a list of accesses; nothing is kept that can be looked up."""

    trace: Trace
    pool: list[int]  # of each byte the buffer that has it, -1 for none
    first: bool
    pinned: int
    log: list[int] = field(default_factory=list)  # buffers in the order in which they were used
    host: set[int] = field(default_factory=set)
    off_device: dict[int, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def offsets(self, buffer: int) -> Iterator[int]:
        """Offsets at which `buffer` would fit."""
        size = int(self.trace.buffers.size[buffer])
        return (offset for offset in range(len(self.pool) - size + 1) if set(self.pool[offset : offset + size]) <= {-1})

    def hole(self, byte: int) -> int:
        """How many bytes are free around byte `byte`."""
        low, high = byte, byte
        while low and self.pool[low - 1] == -1:
            low -= 1
        while high < len(self.pool) and self.pool[high] == -1:
            high += 1
        return high - low

    def evictable(self, op: int) -> list[int]:
        """Buffers used before and after in the same lifetime that are no operands; the least recently used first."""
        ops, on_device = self.trace.ops[op], {*self.pool} - {-1}
        order = [
            buffer
            for index, buffer in enumerate(self.log)
            if buffer in on_device and buffer not in self.log[index + 1 :]
        ]
        return [
            buffer for buffer in order if buffer not in (*ops.reads, *ops.writes) and self.is_used_around(buffer, op)
        ]

    def is_used_around(self, buffer: int, op: int) -> bool:
        """Whether `buffer` has an access on either side of `op` in its lifetime."""
        row, n = self.trace.buffers[buffer], self.trace.n
        uses = [index for index, other in enumerate(self.trace.ops) if buffer in (*other.reads, *other.writes)]
        if row.persistent and row.end - row.start == n:
            return bool(uses)
        since = (op - row.start) % n
        return min((index - row.start) % n for index in uses) < since < max((index - row.start) % n for index in uses)

    def victims(self, b: int, op: int) -> list[int]:
        size, able = self.trace.buffers.size, self.evictable(op)
        left = self.pinned - sum(int(size[x]) for x in self.host)

        def fits(those: list[int]) -> bool:
            return sum(int(size[x]) for x in those if x not in self.host) <= left

        if large := [x for x in able if size[x] >= size[b] and fits([x])]:
            return large[:1]
        runs = []
        for low in range(len(self.pool)):
            for high in range(low + int(size[b]), len(self.pool) + 1):
                who = {*self.pool[low:high]} - {-1}
                if who <= {*able} and {*self.pool[:low], *self.pool[high:]}.isdisjoint(who):
                    members = sorted(who, key=self.pool.index)
                    first = self.pool.index(members[0])
                    runs.append((max(map(able.index, who)), first, len(who), members))
        seen: dict[int, list[int]] = {}
        for _, first, _, members in sorted(runs, key=lambda r: r[2]):
            seen.setdefault(first, members)  # it ends as soon as it suffices
        good = [(max(map(able.index, r)), first, r) for first, r in seen.items() if fits(r)]
        return min(good)[2] if good else []

    def place(self, buffer: int, op: int) -> None:
        if not (size := int(self.trace.buffers.size[buffer])):
            return
        if not [*self.offsets(buffer)]:
            free = self.pool.count(-1)
            self.tally.scattered += free >= size
            self.tally.most_scattered = max(self.tally.most_scattered, free * (free >= size))
            victims = self.victims(buffer, op)
            self.tally.runs += bool(victims) and self.trace.buffers.size[victims[0]] < size
            for victim in victims:
                self.pool = [-1 if x == victim else x for x in self.pool]
                self.off_device[victim] = op
                if victim in self.host:
                    self.tally.dropped += 1
                else:
                    self.tally.copies_out += 1
                    self.tally.bytes_out += int(self.trace.buffers.size[victim])
                    self.host.add(victim)
        at = min(self.offsets(buffer), key=lambda offset: (0 if self.first else self.hole(offset), offset))
        self.pool[at : at + size] = [buffer] * size
        self.tally.placed[buffer, op] = at

    def advance(self) -> Tally:
        """One iteration."""
        buffers, n = self.trace.buffers, self.trace.n
        self.tally = Tally()
        spans = gaps(self.trace)
        row = {(buffer, at % n): gap for gap, (buffer, at) in enumerate(zip(spans.buffer, spans.before))}
        for index, op in enumerate(self.trace.ops):
            operands = [buffer for buffer in dict.fromkeys((*op.reads, *op.writes)) if not buffers.host[buffer]]
            mortal = [
                buffer for buffer in range(len(buffers)) if not buffers.host[buffer] and not self.trace.eternal[buffer]
            ]
            for buffer in (buffer for buffer in mortal if buffers[buffer].start == index):
                self.place(buffer, index)
            for buffer in (buffer for buffer in operands if buffer in self.off_device):
                self.tally.final[row[buffer, index]] = self.off_device[buffer]
                self.tally.copies_in += 1
                self.tally.bytes_in += buffers[buffer].size
                self.place(buffer, index)
            self.off_device = {buffer: at for buffer, at in self.off_device.items() if buffer not in operands}
            self.log += operands
            dead = {buffer for buffer in mortal if (buffers[buffer].end - 1) % n == index}
            self.host -= {*op.writes} | dead
            self.log = [buffer for buffer in self.log if buffer not in dead]
            self.pool = [-1 if buffer in dead else buffer for buffer in self.pool]
        return self.tally


def naive(trace: Trace, machine: Machine, capacity: int, fit: str, turns: int) -> list[Tally]:
    """So many iterations of `Bytes`."""
    spans = gaps(trace)
    wraps = sorted((int(spans.after[gap]), gap) for gap in np.flatnonzero(spans.before >= trace.n).tolist())
    crossing = np.flatnonzero(trace.crossing & ~trace.buffers.host).tolist()
    over = [int(spans.buffer[gap]) for _, gap in wraps]
    run = Bytes(trace, [-1] * capacity, fit == "first", machine.pinned)
    inside: list[int] = []
    run.evictable = lambda op: [buffer for buffer in inside if buffer in run.pool]  # type: ignore[method-assign]
    for buffer in (*(buffer for buffer in crossing if buffer not in over), *over):
        run.place(buffer, 0)
        inside += [buffer] * (buffer in over)
    del run.evictable
    run.log = over
    return [run.advance() for _ in range(turns)]


def counted(turn: Tally) -> dict[str, object]:
    """What one iteration did, but for times."""
    return {name: getattr(turn, name) for name in Tally.__slots__ if name != "copies_ns"}


def small(size: list[int], start: list[int], end: list[int], ops: Ops) -> Trace:
    return Trace(Buffers.make(size, start, end), ops)


def test_neighbours_are_evicted_where_no_buffer_is_large_enough() -> None:
    # A B C D of 3 bytes in 12, made in turn; B is read again, so A, then C and D are older. E needs 6
    ops = Ops.make([[], [], [], [], [1], [], [0], [1], [2], [3]], [[0], [1], [2], [3], [], [4], [], [], [], []])
    trace = small([3, 3, 3, 3, 6], [0, 1, 2, 3, 5], [7, 8, 9, 10, 6], ops)
    found = by_address(trace, tiny_machine(), 12, alignment=1)
    # not A and B, the lowest, nor A and C, the oldest, which are no neighbours
    assert [swap.buffer for swap in found.plan.swaps if swap.release == 5] == [2, 3]  # type: ignore[union-attr]
    assert (found.turns[0].runs, found.turns[0].placed[4, 5]) == (1, 6)


def test_bytes_in_two_holes_are_not_enough() -> None:
    # A C E of 2 bytes between B and D, which die: 4 bytes are free for F in two holes, and A must go
    ops = Ops.make([[], [], [0], [0], [2], [4]], [[0, 1, 2, 3, 4], [], [], [5], [], []])
    trace = Trace(Buffers.make([4, 2, 2, 2, 2, 4], [0, 0, 0, 0, 0, 3], [4, 2, 5, 2, 6, 4]), ops)
    found = by_address(trace, tiny_machine(), 12, alignment=1)
    assert [swap.buffer for swap in found.plan.swaps] == [2]  # type: ignore[union-attr]
    turn = found.turns[0]
    assert (turn.scattered, turn.most_scattered, turn.runs, turn.copies_in) == (1, 4, 1, 1)


def test_no_hole_between_operands() -> None:
    # A and C stay, since op 2 reads them; B between them dies; 2 + 2 bytes are free for D, which needs 4
    ops = Ops.make([[], [], [0, 2]], [[0, 1, 2], [], [3]])
    trace = Trace(Buffers.make([2, 2, 2, 4], [0, 0, 0, 2], [3, 2, 3, 3]), ops)
    with pytest.raises(
        NotReached, match="op 2 needs 4 B in one piece, and nothing that is in the way can be evicted"
    ) as stop:
        by_address(trace, tiny_machine(), 8, alignment=1)
    assert (stop.value.reached, stop.value.limit) == (10, 8)
    with pytest.raises(Infeasible):
        by_address(trace, tiny_machine(), 7, alignment=1)


def test_addresses_that_do_not_settle_have_no_plan() -> None:
    trace = bundled("resnet18")
    found = by_address(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 8 // 10, iterations=8)
    assert (found.period, len(found.turns)) == (0, 7) and found.plan is None and found.placement is None
    assert found.iteration_ns > found.computation_ns == simulate(trace, Machine.named("gtx1080ti")).makespan


@given(st.data())
def test_against_bytes(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(streams=1), nets()).filter(lambda trace: 0 < trace.peak_live_bytes <= 200))
    fit, least = data.draw(st.sampled_from(FITS)), floor(trace)[1]
    machine = tiny_machine().with_(pinned=data.draw(st.sampled_from([10**6, 12])))
    capacity = data.draw(st.integers(max(least, 1), trace.peak_live_bytes + 10))
    try:
        found = by_address(trace, machine, capacity, fit=fit, alignment=1, iterations=6)
    except NotReached:
        return
    followed = naive(trace, machine, capacity, fit, 6)
    if not found.period:
        assert [*map(counted, found.turns)] == [*map(counted, followed[1:])]
        return
    late = [counted(found.turns[k % found.period]) for k in range(6)]
    assert any([*map(counted, followed)][k:] == late[: 6 - k] for k in range(6))
    if found.plan is not None:
        hold(trace, machine, capacity, found)


def hold(trace: Trace, machine: Machine, capacity: int, found: ByAddress) -> None:
    """Plan and placement pass every oracle, and take as long as they say."""
    plan, placement = found.plan, found.placement
    assert plan is not None and placement is not None and placement.height <= capacity
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, capacity, host=machine.pinned)
    check.placement(swapped, placement)
    line = simulate(swapped, machine, placement)
    check.timeline(swapped, line, machine.durations(swapped), placement=placement, duplex=machine.duplex)
    assert line.makespan == found.iteration_ns


@pytest.mark.parametrize(
    "options, why",
    [({"fit": "worst"}, "fit: 'worst'"), ({"alignment": 0}, "alignment: 0"), ({"iterations": 1}, "iterations: 1")],
)
def test_bad_options_are_refused(options: dict[str, object], why: str) -> None:
    trace = small([4], [0], [1], Ops.make([[]], [[0]]))
    with pytest.raises(ValueError, match=why):
        by_address(trace, tiny_machine(), 8, **options)  # type: ignore[arg-type]


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/resnet34_224_b*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_the_thesis_net(path: Path) -> None:
    trace, card = load(path).trace, Machine.named("rx5700xt").with_(reserved=GIB // 2)
    hold(trace, card, card.available, by_address(trace, card, card.available))
