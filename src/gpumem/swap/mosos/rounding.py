"""A schedule near the linear program's: what is kept is rounded, the cheapest runs and copies follow from it.

Checkmate's rounding in two phases, with copies. Between two uses an output is off the device in one hole at most; it
comes back by a copy where the engines are free for it, else by recomputation::

    use a                                use b
     | kept  [ out ]  ....hole....  [ back ] | kept

Where memory does not suffice, the output that the linear program keeps least of is off the device for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.swap.linear_programs import LATE, OPTIMAL
from gpumem.swap.mosos.problem import ALL, Nodes, Proved, Rules, Schedule
from gpumem.swap.mosos.program import StageProgram
from gpumem.swap.mosos.schedule import Decisions, value
from gpumem.swap.mosos.scope import Scope
from gpumem.swap.mosos.waiting import waiting
from gpumem.trace import F64, I64, Bool

# Thresholds: an output is kept where the linear program keeps that much of it. Checkmate's is 0.5; each of the others
# gives another draft, and the best counts. Not tuned.
SHARES = (0.5, 0.3, 0.7, 0.1, 0.9)

Worth = Callable[[Schedule], float]
OUT, BACK = 0, 1  # the engines: copies to the host, and from it


class Gap(NamedTuple):
    """Two uses of a node's output that follow one another: their stages."""

    node: int
    use: int
    next_use: int


class Hole(NamedTuple):
    """The first and the last stage in which an output is off the device."""

    first: int
    last: int


def rounded(nodes: Nodes, limit: int, rules: Rules = ALL, worth: Worth | None = None) -> Proved:
    """Return a schedule near the linear program's; the bound is the linear program's.

    Parameters
    ----------
    nodes, limit, rules
        As in `solve`.
    worth : callable, optional
        The cost of a schedule: the better of two has less; left out, their `value`.

    Notes
    -----
    One linear program, then O(n^2 (n + e)) for each of ten drafts (without copies five, O(n^2 + n e)), and as much
    for each output that has to leave in addition, and for each that is tried to be kept after all. The schedule is one
    that a plan can say, whether `rules` ask for it or not.
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
            schedule, result = draft.polished(schedule, limit, worth)
            if best.schedule is None or result < least:
                best, least = replace(best, schedule=schedule, value=value(nodes, schedule)), result
    return replace(best, status=OPTIMAL) if best.gap <= 0 else best


def automatic(nodes: Nodes, schedule: Schedule, limit: int, rules: Rules = ALL) -> Schedule:
    """Return the schedule with operators chosen by free memory: each run takes the fastest one that fits.

    That is what "-Auto" stands for. A run that none fits takes the one of least workspace, and its memory is above the
    limit.
    """
    used = schedule.memory - np.array(
        [
            nodes.implementations[node][index].workspace
            for node, index in zip(schedule.node.tolist(), schedule.by.tolist())
        ],
        np.int64,
    )
    headroom = limit - used
    by = (
        schedule.by
        if rules.by is not None
        else np.array([nodes.fitting(node, variant) for node, variant in zip(schedule.node, headroom)])
    )
    chosen = [nodes.implementations[node][index] for node, index in zip(schedule.node.tolist(), by.tolist())]
    memory = used + np.array([variant.workspace for variant in chosen], np.int64)
    return replace(schedule, by=by, memory=memory, time=sum(variant.time for variant in chosen))


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy back that begins with stage `back`, and the copy out before it; `out` -1: the host has it already."""

    out: int
    back: int


class _Draft:
    """Holes between uses, the stages in which an output is off the device, and how each comes back."""

    def __init__(self, nodes: Nodes, rules: Rules, scope: Scope, hope: F64, share: float, *, eager: bool) -> None:
        self.nodes, self.rules, self.scope, self.hope, self.eager = nodes, rules, scope, hope, eager
        self.n = len(nodes)
        self.kept = hope >= share
        self.hole: dict[Gap, Hole] = {}
        self.solid: set[Gap] = set()
        self.until = np.zeros(self.n, np.int64)  # stages after the last use through which an output is kept
        for node, users in enumerate(scope.users):
            for use, next_use in pairwise([node, *users]):
                off = [stage for stage in range(use + 1, next_use + 1) if not self.kept[stage, node]]
                if off:
                    self.hole[Gap(node, use, next_use)] = Hole(off[0], off[-1])

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
        schedule = automatic(self.nodes, self._schedule(), limit, self.rules)
        return replace(schedule, wait=waiting(self.nodes, self.scope, schedule))

    def _shrink(self, schedule: Schedule, stage: int) -> bool:
        """Let the output leave that the linear program keeps least of in a stage; False where none can."""
        read = {node for reader in schedule.node[schedule.stage == stage].tolist() for node in self.scope.deps[reader]}
        resident = [node for node in np.flatnonzero(schedule.resident[stage]).tolist() if node not in read]
        gaps = [
            Gap(node, use, next_use)
            for node in resident
            for use, next_use in pairwise([node, *self.scope.users[node]])
            if use < stage <= next_use
        ]
        gaps = [gap for gap in gaps if gap not in self.solid and not self._is_off(gap, stage)]
        if not gaps:
            return False
        gap = min(gaps, key=lambda gap: (self.hope[stage, gap.node], -self.nodes.size[gap.node]))
        first, last = self.hole.get(gap, (stage, stage))
        self.hole[gap] = Hole(min(first, stage), max(last, stage))
        return True

    def polished(self, schedule: Schedule, limit: int, worth: Worth) -> tuple[Schedule, float]:
        """Return a schedule that is no worse, and its worth: outputs stay, or leave later, or come back sooner.

        `within` lets them leave one after the other, so those that left early may fit after all. The largest is tried
        first, until nothing helps: O(n + e) schedules a turn. VGG16 within 0.55 on a P40, from one linear program: 75.0
        ms without, 69.4 ms with it.
        """
        best, before = worth(schedule), inf
        while best < before:
            before = best
            for gap in work.each(sorted(self.hole, key=lambda gap: (-self.nodes.size[gap.node], gap))):
                old = self.hole.pop(gap)
                for hole in (None, Hole(old.first, old.last - 1), Hole(old.first + 1, old.last)):
                    if hole is not None and hole.first > hole.last:
                        continue  # a hole of one stage, made shorter, is none: that was tried first
                    self.hole |= {} if hole is None else {gap: hole}
                    tried = self._made(limit)
                    if tried.memory.max() <= limit and (result := worth(tried)) < best:
                        schedule, best = tried, result
                        break
                else:
                    self.hole[gap] = old
        return schedule, best

    def _is_off(self, gap: Gap, stage: int) -> bool:
        """Whether it is off the device in that stage already."""
        return gap in self.hole and self.hole[gap].first <= stage <= self.hole[gap].last

    def _schedule(self) -> Schedule:
        """Bring each output back after its hole; where a run misses one that cannot be recomputed, that is kept."""
        while True:
            resident, out, back = self._returns()
            missing = None
            by = np.full((self.n, self.n), -1, np.int64)
            for stage in range(self.n):
                missing = self._runs(stage, resident, back, by)
                if missing is not None:
                    break
            if missing is None:
                return Decisions(by, out, back).schedule(self.nodes, self.scope)
            self._keep(missing, stage)

    def _keep(self, node: int, stage: int) -> None:
        uses = [node, *self.scope.users[node]]
        gap = next((Gap(node, use, next_use) for use, next_use in pairwise(uses) if use < stage <= next_use), None)
        if gap is None:
            self.until[node] = max(self.until[node], stage)
        else:
            self.solid.add(gap)

    def _runs(self, stage: int, resident: Bool, back: Bool, by: I64) -> int | None:
        """Set the runs of a stage, the second phase; return an output that is missing and cannot be recomputed."""
        arrives = (back & (self.scope.in_end == stage)).any(axis=0)
        needed = (resident[stage + 1] & ~resident[stage] & ~arrives).tolist()
        is_resident, may_run = (
            resident[stage].tolist(),
            self.scope.runs[stage].tolist(),
        )  # lists: reading an array's element takes ten times as long
        needed[stage] = True
        for node in reversed(range(stage + 1)):
            if needed[node]:
                if not may_run[node]:
                    return node
                by[stage, node] = self.scope.choice[node][0]
                for dep in self.scope.deps[node]:
                    needed[dep] = needed[dep] or not is_resident[dep]
        return None

    def _returns(self) -> tuple[Bool, Bool, Bool]:
        """Fill the engines, what takes longest to recompute first; return S, O and P."""
        n, scope = self.n, self.scope
        resident, out, back = (np.zeros((n + 1, n), np.bool_) for _ in range(3))
        for node, users in enumerate(scope.users):
            last = [node, *users][-1]
            resident[node + 1 : max(last, int(self.until[node])) + 1 if users else 0, node] = True
        self.busy = np.zeros((2, n), np.bool_)
        self.host = np.full(n, n)
        fastest = self.nodes.fastest
        for gap in sorted(self.hole.keys() - self.solid, key=lambda gap: (-fastest[gap.node], gap)):
            node, use, _ = gap
            copy, (first, last) = self._copy(gap), self.hole[gap]
            if copy is not None:
                release = max(scope.out_end[copy.out, node] + 1 if copy.out >= 0 else 0, min(first, copy.back))
                resident[release : scope.in_end[copy.back, node] + 1, node] = False
                back[copy.back, node] = True
                if copy.out >= 0:
                    out[copy.out, node] = True
            elif scope.runs[last, node]:
                resident[use + 1 : last + 1, node] = False
        return resident, out[:n], back[:n]

    def _copy(self, gap: Gap) -> _Copy | None:
        """The latest copy back that the engines are free for, and the earliest copy out before it."""
        (node, use, next_use), scope = gap, self.scope
        last = min(self.hole[gap].last, next_use - 1)
        if not self.eager and scope.runs[self.hole[gap].last, node]:
            return None
        if self.rules.waits:
            return self._due(gap, *self.hole[gap])
        for begin in reversed(range(use + 1, last + 1)):
            if not (
                scope.back[begin, node]
                and scope.in_end[begin, node] <= last
                and self._free(BACK, begin, scope.in_end[begin, node])
            ):
                continue
            out = -1 if self.host[node] < begin else self._out(node, use, begin)
            if out is not None:
                self.busy[BACK, begin : scope.in_end[begin, node] + 1] = True
                if out >= 0:
                    self.busy[OUT, out : scope.out_end[out, node] + 1] = True
                    self.host[node] = scope.out_end[out, node]
                return _Copy(out, begin)
        return None

    def _due(self, gap: Gap, first: int, last: int) -> _Copy | None:
        """Where stages wait, engines are free for all: the copies that leave the hole as it is, if there are any."""
        (node, use, next_use), scope = gap, self.scope
        begin = min(last + 1, next_use)
        on_host = self.host[node] < begin
        out = -1 if on_host else first - 1
        if not (
            scope.back[begin, node] and (on_host or (self.host[node] == self.n and use <= out and scope.out[out, node]))
        ):
            return None
        self.host[node] = min(self.host[node], out) if not on_host else self.host[node]
        return _Copy(out, begin)

    def _out(self, node: int, use: int, before: int) -> int | None:
        if self.host[node] < self.n:
            return None  # it goes out once only
        for begin in range(use + 1, before):
            if (
                self.scope.out[begin, node]
                and self.scope.out_end[begin, node] < before
                and self._free(OUT, begin, self.scope.out_end[begin, node])
            ):
                return begin
        return None

    def _free(self, engine: int, first: int, last: int) -> bool:
        engines = [engine] if self.rules.duplex else [OUT, BACK]
        return not self.busy[engines, first : last + 1].any()
