"""Stages that wait for copies: the rows of the program, and how long the stages of a schedule wait.

A copy has the time of all stages from where it is enqueued to where it is due (letters as in `program`)::

    out    behind the runs of the stage a of a use    to the end of a stage that is chosen, its wait included
    back   from a stage that is chosen, or behind     to the end of the stage before the next use
           the runs of the last before the next use

Copies of an engine can keep to that, if one may be preempted by another that is due earlier, exactly if each stage has
time for its shares of them. The wait of a stage lies behind its runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from gpumem.swap.linear_programs import Rows
from gpumem.swap.mosos._lines import Lines
from gpumem.swap.mosos.problem import Nodes, Schedule
from gpumem.swap.mosos.scope import Scope
from gpumem.trace import I64

Terms = list[tuple[int, float]]
OUT, BACK = 0, 1  # the engines: copies to the host, and from it


class Enqueued(NamedTuple):
    """A copy of a schedule: from when an engine may serve it, and at the end of which stage it is due."""

    stage: int
    behind: bool  # whether behind the runs of that stage, else as it begins
    engine: int
    due: int
    ns: int


@dataclass(slots=True, order=True)
class Remaining:
    """A copy in the queue of an engine: the stage at whose end it is due, and what is left of it, ns."""

    due: int
    ns: int


class Stated(Protocol):
    """The part of a `StageProgram` that the rows of copies are about; `time_unit` is in ns."""

    n: int
    nodes: Nodes
    scope: Scope
    lines: Lines
    rows: Rows
    time_unit: float
    r: list[list[dict[int, int]]]
    o: I64
    p: I64


@dataclass(slots=True)
class Engines:
    """What each stage copies: of each engine, out and back, the terms of its shares, in the program's unit of time."""

    program: Stated
    shares: list[tuple[Terms, Terms]] = field(init=False)
    behind: list[tuple[Terms, Terms]] = field(init=False)  # of these, what is copied behind the runs

    def __post_init__(self) -> None:
        self.shares = [([], []) for _ in range(self.program.n)]
        self.behind = [([], []) for _ in range(self.program.n)]

    def wait(self, cost: float) -> None:
        """State that each stage has time for its shares, that of its runs and of its wait, which has a `cost`."""
        program, nodes, n = self.program, self.program.nodes, self.program.n
        # A stage waits for all copies at most: each output goes out once, and comes back once a gap, of n at most.
        most = float(nodes.out_ns.sum() + n * nodes.in_ns.sum()) / program.time_unit
        wait = program.rows.variables(np.full(n, most), cost=cost)
        for j in np.flatnonzero(program.scope.out.any(axis=0)).tolist():
            for use, next_use in pairwise([j, *program.scope.users[j]]):
                self.out(j, use, next_use)
                self.back(j, use, next_use)
        for t in range(n):
            runs = [
                (column, -nodes.implementations[k][v].time / program.time_unit)
                for k in range(t + 1)
                for v, column in program.r[t][k].items()
            ]
            for shares, behind in zip(self.by_engine(self.shares[t]), self.by_engine(self.behind[t])):
                program.lines.at_most([*shares, (wait[t], -1.0), *runs])
                program.lines.at_most([*behind, (wait[t], -1.0)])

    def by_engine(self, each: tuple[Terms, Terms]) -> tuple[Terms, ...]:
        """One engine does both where copies are half duplex."""
        return each if self.program.scope.rules.duplex else (each[OUT] + each[BACK],)

    def out(self, j: int, use: int, next_use: int) -> None:
        """A copy out that is due at the end of a stage was copied until then: behind node `use` and in later stages."""
        ns, until = float(self.program.nodes.out_ns[j]) / self.program.time_unit, Terms()
        for t in range(use, next_use - 1):
            share = self.program.rows.one(ns)
            self.shares[t][OUT].append((share, 1.0))
            if t == use:
                self.behind[t][OUT].append((share, 1.0))
            until.append((share, -1.0))
            self.program.lines.at_most([*((column, ns) for column in self.program.o[use : t + 1, j]), *until])

    def back(self, j: int, use: int, next_use: int) -> None:
        """A copy back is copied from the stage that names it on; that named by `next_use`, behind the node before."""
        ns, since = float(self.program.nodes.in_ns[j]) / self.program.time_unit, Terms()
        for begin in reversed(range(use + 2, next_use)):
            share = self.program.rows.one(ns)
            self.shares[begin][BACK].append((share, 1.0))
            since.append((share, -1.0))
            self.program.lines.at_most([*((column, ns) for column in self.program.p[begin:next_use, j]), *since])
        if next_use > use + 1 and self.program.p[next_use, j] >= 0:
            for terms in (self.shares, self.behind):
                terms[next_use - 1][BACK].append((int(self.program.p[next_use, j]), ns))


def waiting(nodes: Nodes, scope: Scope, schedule: Schedule) -> int:
    """How long stages wait, ns: each for what is due with it, while engines copy what is due first.

    It is the least: an engine rests only where no copy has been enqueued. O(n c) for c copies.
    """
    if not scope.rules.waits:
        return 0
    copies = []
    for first, node in schedule.out:
        stages_kept = int(np.flatnonzero(~schedule.resident[first:, node])[0])
        copies.append(Enqueued(first - 1, True, OUT, due=first - 1 + stages_kept, ns=int(nodes.out_ns[node])))
    for begin, node in schedule.back:
        due = int(scope.in_end[begin, node])
        copies.append(Enqueued(min(begin, due), begin > due, BACK, due=due, ns=int(nodes.in_ns[node])))
    runs = np.zeros(len(nodes), np.int64)
    for stage, node, index in zip(schedule.stage.tolist(), schedule.node.tolist(), schedule.by.tolist()):
        runs[stage] += nodes.implementations[node][index].time
    queues: list[list[Remaining]] = [[], []]
    total = 0
    for stage, run in enumerate(runs.tolist()):
        for behind, time in ((False, int(run)), (True, 0)):
            for copy in (copy for copy in copies if (copy.stage, copy.behind) == (stage, behind)):
                queues[copy.engine if scope.rules.duplex else OUT].append(Remaining(copy.due, copy.ns))
            if behind:
                time = max(sum(copy.ns for copy in queue if copy.due <= stage) for queue in queues)
                total += time
            for queue in queues:
                _serve(queue, time)
    return total


def _serve(queue: list[Remaining], time: int) -> None:
    """Copy for so long, in the order in which copies are due."""
    queue.sort()
    for copy in queue:
        copied = min(copy.ns, time)
        copy.ns -= copied
        time -= copied
