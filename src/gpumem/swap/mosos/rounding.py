"""A schedule near the linear program's: what is kept is rounded, the cheapest runs and copies follow from it.

Checkmate's rounding in two phases, with copies. Between two uses an output is away in one hole at most, or not at all;
it comes back by a copy where the engines have room for it, else by a run::

    use a                                use b
     | kept  [ out ]  ....hole....  [ back ] | kept

Where memory does not do, the output that the linear program cares for least is away for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf

import numpy as np

from gpumem.base import work
from gpumem.swap.linear_programs import LATE, OPTIMAL
from gpumem.swap.mosos.problem import ALL, Nodes, Proved, Rules, Schedule
from gpumem.swap.mosos.program import StageProgram
from gpumem.swap.mosos.schedule import Decisions, value
from gpumem.swap.mosos.scope import Scope
from gpumem.swap.mosos.waiting import waiting
from gpumem.trace import F64, I64, Bool

SHARES = (0.5, 0.3, 0.7, 0.1, 0.9)  # of an output: kept where the linear program keeps that much of it

Worth = Callable[[Schedule], float]
Gap = tuple[int, int, int]  # node, the stages of two uses that follow one another


def rounded(nodes: Nodes, limit: int, rules: Rules = ALL, worth: Worth | None = None) -> Proved:
    """Return a schedule near the linear program's; the bound is the linear program's.

    Parameters
    ----------
    nodes, limit, rules
        As in `solve`.
    worth : callable, optional
        What of two schedules the better one has less of; left out, their `value`.

    Notes
    -----
    One linear program, then O(n^2 (n + e)) for each of ten ways to round (without copies five, O(n^2 + n e)), as much
    again for each output that has to go in addition, and for each that is tried to be kept after all. The schedule is
    one that a plan can say, whether `rules` ask for it or not.
    """
    program = StageProgram(nodes, rules, limit)
    solved = program.rows.relaxed()
    if solved is None:
        return Proved(None, inf, -inf, LATE)
    bound, hope = solved.dual * program.time_unit, np.where(program.s >= 0, solved.x[program.s], 0.0)
    worth = worth or (lambda schedule: value(nodes, schedule))
    best, least = Proved(None, inf, bound, LATE), inf
    for share, eager in work.each(product(SHARES, (True, False) if rules.copies else (False,))):
        draft = _Draft(nodes, rules, program.scope, hope, share, eager=eager)
        schedule = draft.within(limit)
        if schedule is not None:
            schedule, found = draft.polished(schedule, limit, worth)
            if best.schedule is None or found < least:
                best, least = replace(best, schedule=schedule, value=value(nodes, schedule)), found
    return replace(best, status=OPTIMAL) if best.gap <= 0 else best


def automatic(nodes: Nodes, schedule: Schedule, limit: int, rules: Rules = ALL) -> Schedule:
    """Return the schedule with operators chosen by free memory: each run takes the fastest one that fits.

    That is what "-Auto" stands for. A run that none fits takes the one of least workspace, and its memory is above the
    limit.
    """
    used = schedule.memory - np.array(
        [nodes.implementations[j][v].workspace for j, v in zip(schedule.node.tolist(), schedule.by.tolist())], np.int64
    )
    room = limit - used
    by = schedule.by if rules.by is not None else np.array([nodes.fitting(j, x) for j, x in zip(schedule.node, room)])
    chosen = [nodes.implementations[j][v] for j, v in zip(schedule.node.tolist(), by.tolist())]
    memory = used + np.array([x.workspace for x in chosen], np.int64)
    return replace(schedule, by=by, memory=memory, time=sum(x.time for x in chosen))


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy back that begins with stage `back`, and the copy out before it; `out` -1: the host has it already."""

    out: int
    back: int


class _Draft:
    """Holes between uses, and how each output comes back."""

    def __init__(self, nodes: Nodes, rules: Rules, scope: Scope, hope: F64, share: float, *, eager: bool) -> None:
        self.nodes, self.rules, self.scope, self.hope, self.eager = nodes, rules, scope, hope, eager
        self.n = len(nodes)
        self.kept = hope >= share
        self.hole: dict[Gap, tuple[int, int]] = {}
        self.solid: set[Gap] = set()
        self.until = np.zeros(self.n, np.int64)  # stages after the last use through which an output is kept
        for j, users in enumerate(scope.users):
            for a, b in pairwise([j, *users]):
                away = [t for t in range(a + 1, b + 1) if not self.kept[t, j]]
                if away:
                    self.hole[j, a, b] = away[0], away[-1]

    def within(self, limit: int) -> Schedule | None:
        """Return a schedule within the limit, or none."""
        for _ in work.each(range(self.n * self.n)):
            schedule = self._made(limit)
            worst = int(schedule.memory.argmax())
            if schedule.memory[worst] <= limit:
                return schedule
            if not self._shrink(schedule, int(schedule.stage[worst])):
                return None
        return None

    def _made(self, limit: int) -> Schedule:
        """The schedule of these holes, with the fastest operators that fit."""
        found = automatic(self.nodes, self._schedule(), limit, self.rules)
        return replace(found, wait=waiting(self.nodes, self.scope, found))

    def _shrink(self, schedule: Schedule, t: int) -> bool:
        """Let the output go that the linear program cares for least in stage t; False where none can go."""
        read = {j for k in schedule.node[schedule.stage == t].tolist() for j in self.scope.deps[k]}
        there = [j for j in np.flatnonzero(schedule.there[t]).tolist() if j not in read]
        gaps = [(j, a, b) for j in there for a, b in pairwise([j, *self.scope.users[j]]) if a < t <= b]
        gaps = [gap for gap in gaps if gap not in self.solid and not self._away(gap, t)]
        if not gaps:
            return False
        gap = min(gaps, key=lambda gap: (self.hope[t, gap[0]], -self.nodes.size[gap[0]]))
        first, last = self.hole.get(gap, (t, t))
        self.hole[gap] = min(first, t), max(last, t)
        return True

    def polished(self, schedule: Schedule, limit: int, worth: Worth) -> tuple[Schedule, float]:
        """Return a schedule that is no worse, and its worth: outputs stay, or leave later, or come back sooner.

        `within` lets them go one after the other, so what went early may not be needed any more. The largest is tried
        first, until nothing helps: O(n + e) schedules a turn. VGG16 within 0.55 on a P40, from one linear program: 75.0
        ms without, 69.4 ms with it.
        """
        best, before = worth(schedule), inf
        while best < before:
            before = best
            for gap in work.each(sorted(self.hole, key=lambda gap: (-self.nodes.size[gap[0]], gap))):
                old = self.hole.pop(gap)
                for hole in (None, (old[0], old[1] - 1), (old[0] + 1, old[1])):
                    if hole is not None and hole[0] > hole[1]:
                        continue
                    self.hole |= {} if hole is None else {gap: hole}
                    tried = self._made(limit)
                    if tried.memory.max() <= limit and (found := worth(tried)) < best:
                        schedule, best = tried, found
                        break
                else:
                    self.hole[gap] = old
        return schedule, best

    def _away(self, gap: Gap, t: int) -> bool:
        """Whether it was to be away in stage t already."""
        return gap in self.hole and self.hole[gap][0] <= t <= self.hole[gap][1]

    def _schedule(self) -> Schedule:
        """Find a way back for each hole; where a run misses what cannot be made, that is kept after all."""
        while True:
            there, out, back = self._ways()
            missing = None
            by = np.full((self.n, self.n), -1, np.int64)
            for t in range(self.n):
                missing = self._runs(t, there, back, by)
                if missing is not None:
                    break
            if missing is None:
                return Decisions(by, out, back).schedule(self.nodes, self.scope)
            self._keep(missing, t)

    def _keep(self, j: int, t: int) -> None:
        uses = [j, *self.scope.users[j]]
        gap = next(((j, a, b) for a, b in pairwise(uses) if a < t <= b), None)
        if gap is None:
            self.until[j] = max(self.until[j], t)
        else:
            self.solid.add(gap)

    def _runs(self, t: int, there: Bool, back: Bool, by: I64) -> int | None:
        """Set the runs of stage t, the second phase; return an output that is missing and cannot be made."""
        arrives = (back & (self.scope.in_end == t)).any(axis=0)
        needed = (there[t + 1] & ~there[t] & ~arrives).tolist()
        here, runs = there[t].tolist(), self.scope.runs[t].tolist()  # lists: an element of an array takes ten times
        needed[t] = True
        for k in reversed(range(t + 1)):
            if needed[k]:
                if not runs[k]:
                    return k
                by[t, k] = self.scope.choice[k][0]
                for j in self.scope.deps[k]:
                    needed[j] = needed[j] or not here[j]
        return None

    def _ways(self) -> tuple[Bool, Bool, Bool]:
        """Fill the engines, what takes longest to make again first; return S, O and P."""
        n, scope = self.n, self.scope
        there, out, back = (np.zeros((n + 1, n), np.bool_) for _ in range(3))
        for j, users in enumerate(scope.users):
            last = [j, *users][-1]
            there[j + 1 : max(last, int(self.until[j])) + 1 if users else 0, j] = True
        self.busy = np.zeros((2, n), np.bool_)
        self.host = np.full(n, n)
        fastest = self.nodes.fastest
        for gap in sorted(self.hole.keys() - self.solid, key=lambda gap: (-fastest[gap[0]], gap)):
            j, a, _ = gap
            copy, (first, last) = self._copy(gap), self.hole[gap]
            if copy is not None:
                release = max(scope.out_end[copy.out, j] + 1 if copy.out >= 0 else 0, min(first, copy.back))
                there[release : scope.in_end[copy.back, j] + 1, j] = False
                back[copy.back, j] = True
                if copy.out >= 0:
                    out[copy.out, j] = True
            elif scope.runs[last, j]:
                there[a + 1 : last + 1, j] = False
        return there, out[:n], back[:n]

    def _copy(self, gap: Gap) -> _Copy | None:
        """The latest copy back that the engines have room for, and the earliest copy out before it."""
        (j, a, b), scope = gap, self.scope
        last = min(self.hole[gap][1], b - 1)
        if not self.eager and scope.runs[self.hole[gap][1], j]:
            return None
        if self.rules.waits:
            return self._due(gap, *self.hole[gap])
        for x in reversed(range(a + 1, last + 1)):
            if not (scope.back[x, j] and scope.in_end[x, j] <= last and self._free(1, x, scope.in_end[x, j])):
                continue
            out = -1 if self.host[j] < x else self._out(j, a, x)
            if out is not None:
                self.busy[1, x : scope.in_end[x, j] + 1] = True
                if out >= 0:
                    self.busy[0, out : scope.out_end[out, j] + 1] = True
                    self.host[j] = scope.out_end[out, j]
                return _Copy(out, x)
        return None

    def _due(self, gap: Gap, first: int, last: int) -> _Copy | None:
        """Where stages wait engines have room for all: the copies that leave the hole as it is, if there are any."""
        (j, a, b), scope = gap, self.scope
        x = min(last + 1, b)
        known = self.host[j] < x
        out = -1 if known else first - 1
        if not (scope.back[x, j] and (known or (self.host[j] == self.n and a <= out and scope.out[out, j]))):
            return None
        self.host[j] = min(self.host[j], out) if not known else self.host[j]
        return _Copy(out, x)

    def _out(self, j: int, a: int, before: int) -> int | None:
        if self.host[j] < self.n:
            return None  # it goes out once only
        for x in range(a + 1, before):
            if (
                self.scope.out[x, j]
                and self.scope.out_end[x, j] < before
                and self._free(0, x, self.scope.out_end[x, j])
            ):
                return x
        return None

    def _free(self, engine: int, first: int, last: int) -> bool:
        engines = [engine] if self.rules.duplex else [0, 1]
        return not self.busy[engines, first : last + 1].any()
