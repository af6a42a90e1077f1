"""The program of `whole` with buffers away in part: an oracle of that in flows."""

from __future__ import annotations

import numpy as np

from gpumem.swap.fluid import Fluid, WholeProgram
from gpumem.swap.fluid.program import expand
from gpumem.trace import I64


class Linear(WholeProgram):
    """A is O + I - w where one gap has the value, I where no copy-out is needed, else a variable <= O, <= I.

    Without a limit it asks for the least level.
    """

    def __init__(self, fluid: Fluid, breaks: I64, peak: int, limit: int | None) -> None:
        self.asked = limit
        super().__init__(fluid, breaks, peak, limit or 0)

    def _engines(self, most_ns: float) -> None:
        self.limit = self.asked
        super()._engines(most_ns)

    def _absence(self) -> None:
        self.gap, self.place, _ = expand(self.begin, self.end)
        value, none = self.value[self.gap], np.full(len(self.gap), -1)
        paid, single = self.f.w.out_ns[self.gap] > 0, self.single[value]
        coming = self.arriving[self.in_at[self.gap] + self.place]
        gone, total, mine, several = none.copy(), none.copy(), none.copy(), paid & ~single
        gone[paid] = self.left[(self.out_at[value] + self.place)[paid]]
        total[single] = self.arriving[(self.in_at[self.gap] + self.begin[self.gap])[single]]
        mine[several] = self.rows.variables(np.ones(int(several.sum())))
        self.rows.at_most(mine[several], gone[several])
        self.rows.at_most(mine[several], coming[several])
        self.parts = [(np.where(single, gone, mine), 1.0), (np.where(several, -1, coming), 1.0), (total, -1.0)]

    def _loads(self, most: float) -> None:
        level = self.rows.variables(np.ones(int(self.asked is None)), cost=1.0)
        f, w = self.f, self.f.w
        for shift in (0,) if f.stalls else (0, 1):
            held = f.held[(self.breaks // 2 - shift) % f.n] / self.peak
            row = self.rows.add((0.0 if self.asked is None else most) - held)
            for column in level:
                self.rows.put(row, np.full(len(row), column), -1.0)
            at = self.turns[self.place] // 2 - shift
            inside = (w.after[self.gap] < at) & (at < w.before[self.gap])
            for columns, sign in self.parts:
                here = inside & (columns >= 0)
                size = w.size[self.gap[here]] / self.peak
                self.rows.put(row[self.place[here] % self.k], columns[here], -sign * size)
