"""From decisions to a schedule: without what is no use, with the bytes in use at each run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpumem.swap.mosos.problem import Nodes, Schedule
from gpumem.swap.mosos.program import MOVED, StageProgram
from gpumem.swap.mosos.scope import Scope
from gpumem.swap.mosos.waiting import waiting
from gpumem.trace import F64, I64, Bool


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """What is free to choose: R, O and P of the program. What is kept, and what memory is in use, follows.

    `by[t, j]`: int64[n, n], the implementation by which node j runs in stage t, -1 where it does not; `out[t, j]`,
    `back[t, j]`: bool[n, n], whether a copy of its output begins with stage t.
    """

    by: I64
    out: Bool
    back: Bool

    @classmethod
    def of(cls, program: StageProgram, x: F64) -> Decisions:
        """Read the decisions off a solution in whole numbers."""
        n = program.n
        by = np.full((n, n), -1, np.int64)
        for t, j in np.argwhere(program.scope.runs).tolist():
            by[t, j] = next((v for v, column in program.r[t][j].items() if x[column] > 0.5), -1)
        out, back = ((column >= 0) & (x[column] > 0.5) for column in (program.o[:n], program.p[:n]))
        return cls(by, out, back)

    def schedule(self, nodes: Nodes, scope: Scope) -> Schedule:
        """Return the schedule, less runs and copies of which nothing comes; O(n^2 + n e) for e dependencies.

        An output is kept where a later stage reads it before it is made or brought again, and where a copy of it out
        is under way. So it never takes more time or memory than the program thought.
        """
        by, out, back = self.by.copy(), self.out.copy(), self.back.copy()
        there = _thinned(by, out, back, scope)
        stage, node = np.nonzero(by >= 0)
        run = by[stage, node]
        times = [nodes.implementations[j][v].time for j, v in zip(node.tolist(), run.tolist())]
        memory = np.array(_memory(nodes, scope, by, out, back, there), np.int64)
        first = tuple((int(scope.out_first[t, j]), int(j)) for t, j in np.argwhere(out))
        found = Schedule(stage, node, run, there[:-1], first, _pairs(back), memory, sum(times))
        return replace(found, wait=waiting(nodes, scope, found))


def _pairs(begins: Bool) -> tuple[tuple[int, int], ...]:
    return tuple((int(t), int(j)) for t, j in np.argwhere(begins))


def _thinned(by: I64, out: Bool, back: Bool, scope: Scope) -> Bool:
    """Drop what is no use, from the last stage to the first; return what is there when each stage begins."""
    n = len(by)
    there, none = np.zeros((n + 1, n), np.bool_), np.zeros(n, np.bool_)
    copies = bool(back.any() or out.any())  # without, none of that need be looked at: O(n^2) for each stage
    for t in reversed(range(n)):
        if copies:
            back[:, ~there[t + 1]] &= scope.in_end[:, ~there[t + 1]] != t
            out &= (scope.out_end != t) | back[t + 1 :].any(axis=0)
        arrives = (back & (scope.in_end == t)).any(axis=0) if copies else none
        kept = there[t + 1] & ~arrives
        read = np.zeros(n, np.bool_)
        for k in reversed(range(t + 1)):
            if k < t and not kept[k] and not read[k]:
                by[t, k] = -1
            if by[t, k] >= 0:
                read[scope.deps[k]] = True
        flying = scope.leaving(out, t).any(axis=0) if copies else none
        there[t] = (read | kept) & (by[t] < 0) | flying
    return there


def _memory(nodes: Nodes, scope: Scope, by: I64, out: Bool, back: Bool, there: Bool) -> list[int]:
    """(14)-(17): the bytes in use while each run computes."""
    memory: list[int] = []
    last, copies = scope.last_uses, bool(back.any() or out.any())
    coming: Bool = np.zeros(len(by), np.bool_)
    for t in range(len(by)):
        stays: Bool = there[t + 1]
        if copies:
            coming = np.any(scope.landing(back, t), axis=0)
            arrives = (back & (scope.in_end == t)).any(axis=0)
            going: Bool = np.any(scope.leaving(out, t), axis=0)
            stays = (stays & ~arrives) | going
        used = int(nodes.held[t] + nodes.size[there[t]].sum() + nodes.size[coming].sum())
        through = there[t] & scope.rules.plain  # what a plan holds through all reruns of the stage
        for k in np.flatnonzero(by[t] >= 0).tolist():
            if k == t:
                used -= int(nodes.size[through & ~stays & (last < t)].sum())
            used += int(nodes.size[k])
            memory.append(used + nodes.implementations[k][by[t, k]].workspace)
            held = stays | through if k < t else stays
            for i in [*scope.deps[k], k]:
                if not held[i] and not any(k < x <= t and by[t, x] >= 0 for x in scope.users[i]):
                    used -= int(nodes.size[i])
    return memory


def value(nodes: Nodes, schedule: Schedule) -> float:
    """The objective: the time of all runs and waits in ns, and a little for what is moved."""
    moved = sum(int(nodes.size[j]) for _, j in (*schedule.out, *schedule.back))
    return schedule.time + schedule.wait + MOVED * moved
