"""The integer program of MO-SOS, (1)-(18) of the paper, by the paper's letters.

=============  ===============================================================================================
n              nodes, and stages
t              a stage
j, k           nodes: of j the output, k reads it or runs
i              the node whose output is freed
v              an implementation
R[t, j, v]     node j runs in stage t by implementation v; in code `r`
S[t, j]        its output is resident when stage t begins; `s`
O[t, j]        a copy of it out begins with stage t; `o`
P[t, j]        a copy of it back begins with stage t; `p`
F[t, i, k]     the output of node i is freed in stage t after the run of node k; `free`
W[t]           how long stage t waits for copies behind its runs, where it may; `wait` (`waiting`)
U[t, k]        bytes in use while node k runs in stage t, workspace included; `used`
=============  ===============================================================================================
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gpumem.swap.linear_programs import Rows
from gpumem.swap.mosos._lines import Lines
from gpumem.swap.mosos.problem import Nodes, Rules
from gpumem.swap.mosos.scope import Scope
from gpumem.swap.mosos.waiting import Engines
from gpumem.trace import F64, I64, Bool

# ns that a byte over the link costs: of schedules that take equally long, the one that moves least is the best. Small
# beside any op's time, so it never buys time. Not tuned.
MOVED = 1e-6
# Units of memory in the limit at most, and units of time in all fastest runs: keeps the coefficients of the program
# moderate, as HiGHS' tolerances are absolute. Not tuned.
FINE = 2**16


class StageProgram:
    """The program for `nodes`: of least time within `limit` bytes, or of least memory where there is no limit.

    Notes
    -----
    Where the paper is silent or wrong: a copy that does not end before the last stage begins is no use and has no
    variable. A prefetch holds its bytes from the stage in which it begins, (14), an offload keeps the output through
    the stage in which it ends, (7) and (17). Of (17) only `Free <= 1 - h` is stated, for each term of h by itself and
    with the F of an output summed, since it is freed once in a stage: that is tighter than the paper's division by
    max(h). The other half, that what is dead is freed, follows from the cost of memory. That what is copied out comes
    back, (8), follows from the cost of a copy; how often it comes back is not limited. A node is not recomputed where
    its output is resident, and nothing is freed behind a node that does not run: both follow too, and make the linear
    program tighter. Nothing is kept that no later run can read.

    With `since` and few `recomputable` nodes there are fewer R, which is what makes 50 nodes solvable.

    O(n^2 (v + e / n)) variables for v implementations a node and e dependencies.
    """

    def __init__(self, nodes: Nodes, rules: Rules, limit: int | None) -> None:
        self.nodes, self.rules, self.n = nodes, rules, len(nodes)
        self.scope = Scope.of(nodes, rules)
        self.offloading = [self.scope.being_offloaded(self.scope.out, t) for t in range(self.n)]
        self.landing = [self.scope.landing(self.scope.back, t) for t in range(self.n)]
        self.rows, self.lines = Rows(), Lines()
        self.time_unit = max(float(nodes.fastest.sum()) / FINE, 1.0)
        workspaces = [variant.workspace for variants in nodes.implementations for variant in variants]
        # More than any stage can use: an output is there twice at most, while its copy back lands beside a recomputed
        # one.
        most = int(nodes.held.max(initial=0) + 2 * nodes.size.sum()) + max(workspaces, default=0)
        self.unit = max((most if limit is None else limit) / FINE, 1.0)
        self.capacity = (most if limit is None else limit) / self.unit
        self.least = self.rows.one(self.capacity, cost=1.0) if limit is None else -1
        self._variables(timed=limit is not None)
        self._runs()
        if rules.copies:
            self._copies()
            if rules.waits:
                Engines(self).wait(cost=float(limit is not None))
            else:
                self._engines()
        if rules.plain:
            self._plain()
        self._memory()
        self.lines.into(self.rows)

    def _flag(self) -> int:
        """0 or 1. Those that follow from others are whole numbers too, as S and F: they need not be, but HiGHS (1.12,
        without presolve) then lost the optimum of 1 in 400 small programs, and took 2 to 4 times as long for 24 nodes.
        """
        return self.rows.one(1.0, whole=True)

    def _variables(self, *, timed: bool) -> None:
        scope, n = self.scope, self.n
        self.r: list[list[dict[int, int]]] = [[{} for _ in range(n)] for _ in range(n)]
        for t, j in np.argwhere(scope.runs).tolist():
            for v in scope.choice[j]:
                cost = self.nodes.implementations[j][v].time / self.time_unit * timed
                self.r[t][j][v] = self.rows.one(1.0, cost=cost, whole=True)
        moved = self.nodes.size.astype(np.float64) * (MOVED / self.time_unit * timed)
        self.s = self._each(scope.stays)
        self.o, self.p = (self._each(where, moved) for where in (scope.out, scope.back))

    def _each(self, where: Bool, cost: F64 | None = None) -> I64:
        """A 0-1 variable for each stage and node `where` there may be one; -1 elsewhere, and for stage n."""
        column = np.full((self.n + 1, self.n), -1, np.int64)
        t, j = np.nonzero(where)
        column[t, j] = self.rows.variables(np.ones(len(t)), cost=0.0 if cost is None else cost[j], whole=True)
        return column

    def _ran(self, t: int, j: int, value: float = 1.0) -> list[tuple[int, float]]:
        """Rho of the paper: whether node j runs in stage t."""
        return [(column, value) for column in self.r[t][j].values()]

    def _arrives(self, t: int, j: int, value: float) -> list[tuple[int, float]]:
        """The copies back of j that end in stage t."""
        begins = np.flatnonzero((self.scope.in_end[:, j] == t) & self.scope.back[:, j])
        return [(int(self.p[begin, j]), value) for begin in begins]

    def _out_in(self, t: int, j: int) -> list[tuple[int, float]]:
        return [(int(self.o[begin, j]), 1.0) for begin in np.flatnonzero(self.offloading[t][:, j])]

    def _back_in(self, t: int, j: int, value: float = 1.0) -> list[tuple[int, float]]:
        return [(int(self.p[begin, j]), value) for begin in np.flatnonzero(self.landing[t][:, j])]

    def _runs(self) -> None:
        """(2)-(5): each node in its stage, from resident inputs; those were resident before, made or fetched."""
        at_most, s = self.lines.at_most, self.s
        for t, k in np.argwhere(self.scope.runs).tolist():
            if t == k:
                self.lines.exactly(self._ran(t, t), 1.0)
            else:
                at_most([*self._ran(t, k), (s[t, k], 1.0)], 1.0)
            for j in self.scope.deps[k]:
                at_most([*self._ran(t, k), *self._ran(t, j, -1.0), (s[t, j], -1.0)])
        for t, j in np.argwhere(self.scope.stays).tolist():
            before = [(s[t - 1, j], -1.0), *self._ran(t - 1, j, -1.0), *self._arrives(t - 1, j, -1.0)]
            at_most([(s[t, j], 1.0), *before])

    def _copies(self) -> None:
        """(6)-(9): one copy out of an output at most, while it is resident; copies back after it."""
        at_most, scope = self.lines.at_most, self.scope
        for t, j in np.argwhere(scope.out).tolist():
            for stage in range(scope.out_first[t, j], scope.out_end[t, j] + 1):
                at_most([(self.o[t, j], 1.0), (self.s[stage, j], -1.0)])
        for t, j in np.argwhere(scope.back).tolist():
            begun = np.flatnonzero(scope.out[:, j] & (scope.out_end[:, j] < t))
            at_most([(self.p[t, j], 1.0), *((self.o[stage, j], -1.0) for stage in begun)])
        for j in np.flatnonzero(scope.out.any(axis=0)).tolist():
            out = [(column, 1.0) for column in self.o[:, j]]
            at_most(out, 1.0)

    def _engines(self) -> None:
        """(10)-(13): each engine serves one copy at a time; where copies are half duplex, there is one engine."""
        for t in range(self.n):
            out = [term for j in range(self.n) for term in self._out_in(t, j)]
            back = [term for j in range(self.n) for term in self._back_in(t, j)]
            for engine in [out, back] if self.rules.duplex else [out + back]:
                self.lines.at_most(engine, 1.0)

    def _plain(self) -> None:
        """Between two recorded uses an output leaves once and comes back once, by a copy or by a run.

        For a `Recompute` it leaves at once; the copy out of a `Swap` lies in the same gap as its copy back, or in an
        earlier one. After its last use an output may stay for a while (`Hold`). Runs whose outputs do not outlast their
        stage are not limited: a plan's recomputations make what they miss in scratch.
        """
        at_most, s = self.lines.at_most, self.s
        for j in range(self.n):
            uses = [j, *self.scope.users[j]]
            for use, next_use in pairwise(uses):
                kept = [(t, self._flag()) for t in range(use + 1, next_use) if s[t + 1, j] >= 0]
                for t, column in kept:  # resident in stage t + 1, but neither in t nor copied: recomputed
                    at_most([(s[t + 1, j], 1.0), (s[t, j], -1.0), (column, -1.0), *self._arrives(t, j, -1.0)])
                made = [*((column, 1.0) for _, column in kept), *self._ran(next_use, j)]
                back = [(self.p[begin, j], 1.0) for begin in range(use + 1, next_use + 1) if self.scope.back[begin, j]]
                at_most([*made, *back], 1.0)
                at_most([*made, (s[use + 1, j], 1.0)], 1.0)
                out = [(self.o[begin, j], 1.0) for begin in range(use, next_use)]
                at_most([*out, *((column, -1.0) for column, _ in back)])
                for begin in range(use + 1, next_use):
                    at_most([(self.p[begin, j], 1.0), (s[begin, j], 1.0)], 1.0 if self.p[begin, j] >= 0 else 2.0)
            for t in range(uses[-1] + 1, self.n):
                at_most([(s[t + 1, j], 1.0), (s[t, j], -1.0)])

    def _memory(self) -> None:
        """(14)-(18), stage by stage."""
        at_most, size = self.lines.at_most, self.nodes.size / self.unit
        for t in range(self.n):
            freed = self._freed(t)
            before: list[tuple[int, float]] = []
            for j in range(t):
                before += [(self.s[t, j], size[j]), *self._back_in(t, j, size[j])]
            right = -float(self.nodes.held[t]) / self.unit
            for k in np.flatnonzero(self.scope.runs[t, : t + 1]).tolist():
                workspace = {v: self.nodes.implementations[k][v].workspace / self.unit for v in self.r[t][k]}
                used = self.rows.one(self.capacity)
                at_most([*before, *((c, size[k] + workspace[v]) for v, c in self.r[t][k].items()), (used, -1.0)], right)
                before = [(used, 1.0), *((c, -workspace[v]) for v, c in self.r[t][k].items())]
                before += [(column, -size[i]) for i, column in freed.get(k, [])]
                right = 0.0
                if self.least >= 0:
                    at_most([(used, 1.0), (self.least, -1.0)])

    def _freed(self, t: int) -> dict[int, list[tuple[int, int]]]:
        """(17): the outputs that may be freed after each run of stage t, with their variables F."""
        freed: dict[int, list[tuple[int, int]]] = {}
        for i in range(t):
            readers = [k for k in self.scope.users[i] if k <= t and self.scope.runs[t, k]]
            places = [k for k in ([i] if self.scope.runs[t, i] else []) + readers if k < t]
            if t in readers or not places or not self.nodes.size[i]:
                continue  # the last run of a stage reads it, or none
            if self.rules.plain:
                self._leaves_before(t, i, freed)
                places = places if self.scope.runs[t, i] else []
            column = {k: self._flag() for k in places}
            for k, free in column.items():
                freed.setdefault(k, []).append((i, free))
            self._frees_once(t, i, column)
        return freed

    def _frees_once(self, t: int, i: int, column: dict[int, int]) -> None:
        at_most = self.lines.at_most
        for k, free in column.items():
            at_most([(free, 1.0), *self._ran(t, k, -1.0)])
            if k != i:
                at_most([*((column[earlier], 1.0) for earlier in column if earlier < k), *self._ran(t, k)], 1.0)
        once = [(free, 1.0) for free in column.values()]
        resident = [] if self.rules.plain else [(self.s[t, i], -1.0)]
        at_most([*once, *self._ran(t, i, -1.0), *resident])
        at_most([*once, (self.s[t + 1, i], 1.0), *self._arrives(t, i, -1.0)], 1.0)
        at_most([*once, *self._out_in(t, i)], 1.0)

    def _leaves_before(self, t: int, i: int, freed: dict[int, list[tuple[int, int]]]) -> None:
        """In a plain schedule what is resident when a stage begins is freed after its recomputations, not before."""
        recomputed = np.flatnonzero(self.scope.runs[t, :t])
        if t > max(self.scope.users[i], default=i) and len(recomputed):
            free = self._flag()
            freed.setdefault(int(recomputed[-1]), []).append((i, free))
            self.lines.at_most([(free, 1.0), (self.s[t, i], -1.0)])
            self.lines.at_most([(free, 1.0), (self.s[t + 1, i], 1.0)], 1.0)
