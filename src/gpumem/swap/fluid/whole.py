"""The same program in whole numbers: at each breakpoint a buffer is away or it is not.

With every instant a breakpoint it also says what a plan says, `o` and `f` of each gap; then nothing is left open but
the order of the copies::

    op           after                 release             fetch             before
    o  released            0      0       1        1         1        1        1
    f  fetched             0      0       0        0         1        1        1
    A  away                               <= o - f at the start of an op; at its end if the next one releases
"""

from __future__ import annotations

import numpy as np

from gpumem.swap.fluid.program import FluidProgram, Solution
from gpumem.swap.fluid.relax import Fluid
from gpumem.swap.linear_programs import Solved
from gpumem.trace import F64, I64, Bool

FEWER = 0.01  # ns that all decisions cost: of equal solutions the one that swaps less


class WholeProgram(FluidProgram):
    """The program for a limit in whole numbers; gaps are rows of the fluid.

    Parameters
    ----------
    host : int64[n], optional
        Bytes that the host has room for at each op. What is away then is held there.
    """

    def __init__(self, fluid: Fluid, breaks: I64, peak: int, limit: int, host: I64 | None = None) -> None:
        super().__init__(fluid, breaks, peak, limit)
        if host is not None:
            row, mine = self.rows.add(np.maximum(host, 0) / peak), np.flatnonzero(self.turns[self.place] % 2 == 0)
            op, size = self.turns[self.place[mine]] // 2 % fluid.n, self.f.w.size[self.gap[mine]]
            self.rows.put(row[op], self.away[0][0][mine], size / peak)

    def in_whole(
        self, *, best: float, gap: float = 0.0, nodes: int | None = None, sure: bool = True
    ) -> tuple[Solved, Solution | None]:
        """Solve the program for a stall below `best` ns; see `Rows.solve`.

        Return what became of it, values in ns, and the solution if there is one.
        """
        found = self.rows.solve(best=best, gap=gap, nodes=nodes, sure=sure)
        if found.x is None:
            return found, None
        return found, self._solution(found.x, np.zeros(self.rows.rows), found.bound)

    def _away(self, gone: I64, coming: I64, total: I64, paid: Bool, single: Bool) -> None:
        """A is 0 or 1 where an op starts; at its end, where little is decided, whatever lies in between."""
        starts = self.turns[self.place] % 2 == 0
        mine = np.empty(len(starts), np.int64)
        for chosen, whole in ((starts, True), (~starts, False)):
            mine[chosen] = self.rows.variables(np.ones(int(chosen.sum())), whole=whole)
        self.rows.at_most(mine, np.where(paid, gone, coming))
        self.rows.at_most(mine, coming)
        self.away = [(mine, 1.0)]


class PlacedProgram(WholeProgram):
    """The program that says what a plan says; every instant is a breakpoint.

    Parameters
    ----------
    load : int64[n]
        The load without swapping: that of a plan is at most the limit at every op.
    """

    def __init__(self, fluid: Fluid, peak: int, limit: int, load: I64, host: I64 | None = None) -> None:
        super().__init__(fluid, np.arange(2 * fluid.n), peak, limit)
        w, count = self.f.w, self.f.w.before - self.f.w.after
        self.first = np.cumsum(count) - count  # of each gap: where its ops begin, along `gaps` and `ops`
        self.gaps = np.repeat(np.arange(len(w)), count)
        self.ops = np.arange(len(self.gaps)) - self.first[self.gaps] + w.after[self.gaps] + 1
        ones = np.ones(len(self.gaps))
        self.released = self.rows.variables(ones, cost=FEWER / max(len(ones), 1), whole=True)
        self.fetched = self.rows.variables(ones, whole=True)
        self._once(self.first + count - 1)
        self._only_then()
        self._held((limit - load) / peak, -1.0)
        if host is not None:
            self._held(np.maximum(host, 0) / peak, 1.0)

    def _once(self, final: I64) -> None:
        """Neither goes back, the fetch comes with the release or later, and what is released is fetched."""
        again = self.gaps[1:] == self.gaps[:-1]
        for columns in (self.released, self.fetched):
            self.rows.at_most(columns[:-1][again], columns[1:][again])
        self.rows.at_most(self.fetched, self.released)
        self.rows.at_most(self.released[final], self.fetched[final])

    def _only_then(self) -> None:
        """A buffer is away only between release and fetch; at the end of an op, if the next one releases it."""
        instant, away = self.turns[self.place], self.away[0][0]
        start = self.first[self.gap] + instant // 2 - self.f.w.after[self.gap] - 1  # of the op that it belongs to
        end = instant % 2
        row = self.rows.add(np.zeros(len(away)))
        self.rows.put(row, away, 1.0)
        self.rows.put(row, self.released[start + end], -1.0)
        self.rows.put(row, self.fetched[start], 1.0)

    def _held(self, room: F64, sign: float) -> None:
        """What a plan keeps away at an op, by the order of issue: the host has room for it, the device for the rest."""
        row = self.rows.add(room)
        inside = np.flatnonzero(self.ops < self.f.w.before[self.gaps])
        size, op = sign * self.f.w.size[self.gaps[inside]] / self.peak, self.ops[inside] % self.f.n
        self.rows.put(row[op], self.released[inside], size)
        self.rows.put(row[op], self.fetched[inside], -size)

    def said(self, x: F64) -> tuple[I64, I64, I64]:
        """Return what a solution says: the gaps that are swapped, their releases and their fetches."""
        size = len(self.f.w)
        late = [np.bincount(self.gaps[x[columns] < 0.5], minlength=size) for columns in (self.released, self.fetched)]
        mine = np.flatnonzero(np.bincount(self.gaps[x[self.released] > 0.5], minlength=size))
        after = self.f.w.after[mine] + 1
        return self.active[mine], after + late[0][mine], after + late[1][mine]

    def forbid(self, gaps: I64, release: I64, fetch: I64, stall: float) -> None:
        """Say that whatever says just this stalls for so many ns.

        A solution that differs from it in k of its decisions stalls at least `(1 - k) * stall`.
        """
        when = np.full((2, int(self.active.max(initial=-1)) + 1), 2**61)
        when[:, gaps] = release, fetch
        yes = np.concatenate([self.ops >= column[self.active[self.gaps]] for column in when])
        columns = np.concatenate([self.released, self.fetched])
        row = self.rows.add(np.array([(int(yes.sum()) - 1) * stall / self.unit]))
        self.rows.put(np.repeat(row, len(self.stall)), self.stall, -1.0)
        self.rows.put(np.repeat(row, len(columns)), columns, np.where(yes, stall, -stall) / self.unit)
