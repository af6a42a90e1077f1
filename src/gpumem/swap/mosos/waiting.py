"""Stages that wait for copies: the rows of the program, and how long the stages of a schedule wait.

A copy has the time of all stages from where it is handed over to where it is due::

    out    behind the runs of the stage a of a use    to the end of a stage that is chosen, its wait included
    back   from a stage that is chosen, or behind     to the end of the stage before the next use
           the runs of the last before the next use

Copies of an engine can keep to that, if one may be set aside for another that is due earlier, exactly if each stage has
time for its shares of them. The wait of a stage lies behind its runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gpumem.swap.linear_programs import Rows
from gpumem.swap.mosos._lines import Lines
from gpumem.swap.mosos.problem import Nodes, Schedule
from gpumem.swap.mosos.scope import Scope
from gpumem.trace import I64

Terms = list[tuple[int, float]]


@dataclass(slots=True)
class Engines:
    """What each stage copies: of each engine, out and back, the terms of its shares, in the program's unit of time.

    The fields but the last two are the program's; see `StageProgram`.
    """

    nodes: Nodes
    scope: Scope
    lines: Lines
    rows: Rows
    unit: float
    r: list[list[dict[int, int]]]
    o: I64
    p: I64
    shares: list[tuple[Terms, Terms]] = field(init=False)
    behind: list[tuple[Terms, Terms]] = field(init=False)  # of these, what is copied behind the runs

    def __post_init__(self) -> None:
        self.shares = [([], []) for _ in range(len(self.nodes))]
        self.behind = [([], []) for _ in range(len(self.nodes))]

    def wait(self, cost: float) -> None:
        """State that each stage has time for its shares, that of its runs and of its wait, which has a `cost`."""
        nodes, n = self.nodes, len(self.nodes)
        most = float(nodes.out_ns.sum() + n * nodes.in_ns.sum()) / self.unit
        wait = self.rows.variables(np.full(n, most), cost=cost)
        for j in np.flatnonzero(self.scope.out.any(axis=0)).tolist():
            for a, b in pairwise([j, *self.scope.users[j]]):
                self.out(j, a, b)
                self.back(j, a, b)
        for t in range(n):
            runs = [
                (column, -nodes.implementations[k][v].time / self.unit)
                for k in range(t + 1)
                for v, column in self.r[t][k].items()
            ]
            for shares, behind in zip(self.by_engine(self.shares[t]), self.by_engine(self.behind[t])):
                self.lines.at_most([*shares, (wait[t], -1.0), *runs])
                self.lines.at_most([*behind, (wait[t], -1.0)])

    def by_engine(self, each: tuple[Terms, Terms]) -> tuple[Terms, ...]:
        """One engine does both where copies are half duplex."""
        return each if self.scope.rules.duplex else (each[0] + each[1],)

    def out(self, j: int, a: int, b: int) -> None:
        """A copy out that is due at the end of a stage was copied until then: behind node a, and in stages after it."""
        ns, until = float(self.nodes.out_ns[j]) / self.unit, Terms()
        for t in range(a, b - 1):
            share = self.rows.one(ns)
            self.shares[t][0].append((share, 1.0))
            if t == a:
                self.behind[t][0].append((share, 1.0))
            until.append((share, -1.0))
            self.lines.at_most([*((column, ns) for column in self.o[a : t + 1, j]), *until])

    def back(self, j: int, a: int, b: int) -> None:
        """A copy back that begins with a stage or later is copied from then on; that named by b, behind node b - 1."""
        ns, since = float(self.nodes.in_ns[j]) / self.unit, Terms()
        for x in reversed(range(a + 2, b)):
            share = self.rows.one(ns)
            self.shares[x][1].append((share, 1.0))
            since.append((share, -1.0))
            self.lines.at_most([*((column, ns) for column in self.p[x:b, j]), *since])
        if b > a + 1 and self.p[b, j] >= 0:
            for terms in (self.shares, self.behind):
                terms[b - 1][1].append((int(self.p[b, j]), ns))


def waiting(nodes: Nodes, scope: Scope, schedule: Schedule) -> int:
    """How long stages wait, ns: each for what is due with it, while engines copy what is due first.

    It is the least: an engine rests only where nothing has been handed over. O(n c) for c copies.
    """
    if not scope.rules.waits:
        return 0
    began = []  # stage, whether behind its runs, engine, the stage at whose end it is due, ns
    for first, j in schedule.out:
        gone = int(np.flatnonzero(~schedule.there[first:, j])[0])
        began.append((first - 1, True, 0, first - 1 + gone, int(nodes.out_ns[j])))
    for x, j in schedule.back:
        due = int(scope.in_end[x, j])
        began.append((min(x, due), x > due, 1, due, int(nodes.in_ns[j])))
    runs = np.zeros(len(nodes), np.int64)
    for t, j, v in zip(schedule.stage.tolist(), schedule.node.tolist(), schedule.by.tolist()):
        runs[t] += nodes.implementations[j][v].time
    queues: list[list[list[int]]] = [[], []]
    total = 0
    for t, run in enumerate(runs.tolist()):
        for behind, time in ((False, int(run)), (True, 0)):
            for _, _, engine, due, ns in (row for row in began if row[:2] == (t, behind)):
                queues[engine if scope.rules.duplex else 0].append([due, ns])
            if behind:
                time = max(sum(ns for due, ns in queue if due <= t) for queue in queues)
                total += time
            for queue in queues:
                _serve(queue, time)
    return total


def _serve(queue: list[list[int]], time: int) -> None:
    """Copy for so long, what is due first first."""
    queue.sort()
    for row in queue:
        done = min(row[1], time)
        row[1] -= done
        time -= done
