"""How long a round of a pipeline takes by the simulated clock, and when each of its ops runs.

A round depends on which turns run in it: all of them while the pipeline is full, some of them while it fills and
drains, and where a job has ended its iterations before its last turn::

    round      0         1         2
    turn 0  [ begins ][ begins ][        ]      round 0: ({0, 1}, {})       lag 0, lag 1
    turn 1  [  begins ][ .. ends, begins ][ .. ends ]      round 2: ({}, {0, 1})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpumem.jobs.waterwave.co_schedule import CoSchedule
from gpumem.jobs.waterwave.slot_log import GroupRun, OpRun
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import share
from gpumem.simulator.simulate import simulate
from gpumem.trace import I64

Begun = Sequence[Mapping[int, int]]  # by lag, rounds back: turns that have begun an iteration then -> which one


class Round(NamedTuple):
    """How long a round takes, and when each op runs, in ns since all streams met at its beginning."""

    ns: int
    start: I64
    end: I64


@dataclass(frozen=True, slots=True)
class _Cell:
    """A node group in a round: of which turn, how many rounds after the turn began, in which slot; its ops."""

    turn: int
    group: int
    lag: int
    slot: int
    ops: I64


class RoundClock:
    """Times rounds of one pipeline; `over`: rounds that follow the last one in which something begins.

    `last`: of each turn the node group that ends it. A round is timed once for all that run the same turns.
    """

    def __init__(self, schedule: CoSchedule, machine: Machine, slowdown: float) -> None:
        self.schedule, self.machine, self.slowdown = schedule, machine, slowdown
        self.alone = machine.durations(schedule.trace)
        self.over = int(schedule.lag.max(initial=0))
        self.cells = list(self._cells())
        self.last = {cell.turn: cell for cell in self.cells}
        self._known: dict[tuple[frozenset[int], ...], Round] = {}
        self.full = self.round([dict.fromkeys(range(len(schedule.pipeline.turns)), 0)] * (self.over + 1))

    def _cells(self) -> Iterator[_Cell]:
        schedule = self.schedule
        for index, turn in enumerate(schedule.pipeline.turns):
            for group, at in enumerate(turn.slot):
                lag, slot = divmod(at, schedule.pipeline.period)
                runs = (schedule.turn == index) & (schedule.lag == lag) & (schedule.slot == slot)
                yield _Cell(index, group, lag, slot, ops=np.flatnonzero(runs))

    def round(self, begun: Begun) -> Round:
        """Return the times of a round in which these turns run."""
        key = tuple(map(frozenset, begun))
        if key not in self._known:
            self._known[key] = self._timed(key)
        return self._known[key]

    def _timed(self, turns: Sequence[frozenset[int]]) -> Round:
        schedule = self.schedule
        runs = np.zeros(schedule.trace.n, np.bool_)
        for cell in self.cells:
            runs[cell.ops] = cell.turn in turns[cell.lag]
        partial = replace(schedule.trace, ops=replace(schedule.trace.ops, duration=np.where(runs, self.alone, 0)))
        timeline = simulate(share(partial, self.machine, self.slowdown), self.machine)
        began = timeline.end[(schedule.slot == 0) & (schedule.turn < 0)].max()  # an idle stream has its syncs early
        return Round(timeline.makespan, timeline.start - began, timeline.end - began)

    def ends(self, job: int) -> list[tuple[int, int]]:
        """Of each turn of a job: how many rounds after it began, and when in that one, it ends in a full pipeline."""
        last = [self.last[turn] for turn in self.schedule.pipeline.turns_of(job)]
        return sorted((cell.lag, int(self.full.end[cell.ops[-1]])) for cell in last)

    def runs(self, begun: Begun, jobs: Sequence[str], now: int, slot: int) -> Iterator[GroupRun]:
        """Yield what runs in a round that begins at ns `now` with `slot`."""
        _, start, end = self.round(begun)
        turns, own = self.schedule.pipeline.turns, self.schedule.op
        for cell in self.cells:
            if cell.turn in begun[cell.lag]:
                turn, rows = turns[cell.turn], (own, now + start, now + end)
                ops = tuple(map(OpRun, *(column[cell.ops].tolist() for column in rows)))
                yield GroupRun(
                    jobs[turn.job],
                    begun[cell.lag][cell.turn],
                    cell.group,
                    stream=turn.stream[cell.group],
                    slot=slot + cell.slot,
                    start=ops[0].start,
                    end=ops[-1].end,
                    ops=ops,
                )
