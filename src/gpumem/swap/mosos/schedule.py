"""From decisions to a schedule: useless runs and copies dropped, the bytes in use at each run counted."""

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
    def of(cls, program: StageProgram, solution: F64) -> Decisions:
        """Read the decisions off a solution in whole numbers."""
        n = program.n
        by = np.full((n, n), -1, np.int64)
        for t, j in np.argwhere(program.scope.runs).tolist():
            by[t, j] = next((v for v, column in program.r[t][j].items() if solution[column] > 0.5), -1)
        out, back = ((column >= 0) & (solution[column] > 0.5) for column in (program.o[:n], program.p[:n]))
        return cls(by, out, back)

    def schedule(self, nodes: Nodes, scope: Scope) -> Schedule:
        """Return the schedule, less runs and copies of which nothing comes; O(n^2 + n e) for e dependencies.

        An output is kept where a later stage reads it before it is recomputed or fetched, and where a copy of it out
        is in flight. So it never takes more time or memory than the program's solution.
        """
        by, out, back = self.by.copy(), self.out.copy(), self.back.copy()
        resident = _thinned(by, out, back, scope)
        stage, node = np.nonzero(by >= 0)
        picked = by[stage, node]
        times = [nodes.implementations[k][v].time for k, v in zip(node.tolist(), picked.tolist())]
        memory = np.array(_memory(nodes, scope, by, out=out, back=back, resident=resident), np.int64)
        copies_out = tuple((int(scope.out_first[begin, copied]), int(copied)) for begin, copied in np.argwhere(out))
        schedule = Schedule(
            stage, node, picked, resident[:-1], out=copies_out, back=_pairs(back), memory=memory, time=sum(times)
        )
        return replace(schedule, wait=waiting(nodes, scope, schedule))


def _pairs(begins: Bool) -> tuple[tuple[int, int], ...]:
    return tuple((int(stage), int(node)) for stage, node in np.argwhere(begins))


def _thinned(by: I64, out: Bool, back: Bool, scope: Scope) -> Bool:
    """Drop what is no use, from the last stage to the first; return what is resident when each stage begins."""
    n = len(by)
    resident, none = np.zeros((n + 1, n), np.bool_), np.zeros(n, np.bool_)
    copies = bool(back.any() or out.any())  # without, none of that need be looked at: O(n^2) for each stage
    for stage in reversed(range(n)):
        if copies:
            back[:, ~resident[stage + 1]] &= scope.in_end[:, ~resident[stage + 1]] != stage
            out &= (scope.out_end != stage) | back[stage + 1 :].any(axis=0)
        arrives = (back & (scope.in_end == stage)).any(axis=0) if copies else none
        kept = resident[stage + 1] & ~arrives
        read = np.zeros(n, np.bool_)
        for node in reversed(range(stage + 1)):
            if node < stage and not kept[node] and not read[node]:
                by[stage, node] = -1
            if by[stage, node] >= 0:
                read[scope.deps[node]] = True
        in_flight = scope.being_offloaded(out, stage).any(axis=0) if copies else none
        resident[stage] = (read | kept) & (by[stage] < 0) | in_flight
    return resident


def _memory(nodes: Nodes, scope: Scope, by: I64, *, out: Bool, back: Bool, resident: Bool) -> list[int]:
    """(14)-(17): the bytes in use while each run computes."""
    memory: list[int] = []
    last, copies = scope.last_uses, bool(back.any() or out.any())
    is_arriving: Bool = np.zeros(len(by), np.bool_)
    for stage in range(len(by)):
        is_kept: Bool = resident[stage + 1]
        if copies:
            is_arriving = np.any(scope.landing(back, stage), axis=0)
            arrives = (back & (scope.in_end == stage)).any(axis=0)
            is_being_offloaded: Bool = np.any(scope.being_offloaded(out, stage), axis=0)
            is_kept = (is_kept & ~arrives) | is_being_offloaded
        used = int(nodes.held[stage] + nodes.size[resident[stage]].sum() + nodes.size[is_arriving].sum())
        through = resident[stage] & scope.rules.plain  # what a plan holds through all recomputations of the stage
        for node in np.flatnonzero(by[stage] >= 0).tolist():
            if node == stage:
                used -= int(nodes.size[through & ~is_kept & (last < stage)].sum())
            used += int(nodes.size[node])
            memory.append(used + nodes.implementations[node][by[stage, node]].workspace)
            held = is_kept | through if node < stage else is_kept
            for dep in [*scope.deps[node], node]:
                if not held[dep] and not any(
                    node < later <= stage and by[stage, later] >= 0 for later in scope.users[dep]
                ):
                    used -= int(nodes.size[dep])
    return memory


def value(nodes: Nodes, schedule: Schedule) -> float:
    """The objective: the time of all runs and waits in ns, and a little for what is moved."""
    moved = sum(int(nodes.size[node]) for _, node in (*schedule.out, *schedule.back))
    return schedule.time + schedule.wait + MOVED * moved
