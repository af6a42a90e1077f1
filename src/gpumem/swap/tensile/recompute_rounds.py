"""One job in TENSILE's recomputation rounds: what its peak holds, by memory saved per second of running ops again."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpumem.columns import I64
from gpumem.swap.gaps import gaps
from gpumem.swap.plan import Recompute
from gpumem.swap.recompute import recomputable
from gpumem.swap.tensile._stabs import Stabs
from gpumem.swap.tensile.swap_rounds import SwapRounds


class RecomputeRounds:
    """What is left to drop after the swap rounds: gaps of buffers that are never absent otherwise.

    A recomputation reads its inputs where it runs, so they must be there, and stay there: what a chosen one
    reads is not dropped around it.
    """

    def __init__(self, job: SwapRounds, duration: I64) -> None:
        self.job, self.taken = job, list[Recompute]()
        trace = job.trace
        b, g = trace.buffers, gaps(trace)
        kept = ~np.isin(g.buffer, np.array(sorted(job.buffers), np.int64)) & ~b.persistent[g.buffer]
        self.found = found = recomputable(
            trace, job.machine, g.where(kept & (g.before > g.after + 1) & (b.size[g.buffer] > 0))
        )
        rows = np.flatnonzero(found.ok)
        worth = b.size[found.gaps.buffer[rows]].astype(np.float64) / np.maximum(duration[found.op[rows]], 1)
        order = np.argsort(-worth, kind="stable")
        self.rows, self.worth = rows[order], worth[order]
        g = found.gaps
        self.stabs = Stabs(g.after[self.rows] + 1, g.before[self.rows], trace.n)
        self.absent: dict[int, list[tuple[int, int]]] = defaultdict(list)  # [first, stop) of each buffer
        for task in job.tasks.values():
            s = task.swap
            self.absent[s.buffer].append((s.release, s.prefetch))
        self.needed: dict[int, list[int]] = defaultdict(list)  # before which ops a chosen recomputation reads a buffer
        self.beside: dict[int, int] = defaultdict(int)  # bytes they need before an op, beside what is counted there
        self._next = -1

    @property
    def peak(self) -> int:
        """The bytes at the peak."""
        return self.job.peak

    def best(self) -> int:
        """Return the row that saves most bytes per ns at the peak, -1 if there is none left."""
        while self._next < 0:
            found = self.stabs.biggest(self.job.footprint.op)
            if found < 0:
                return -1
            if self._possible(found):
                self._next = found
        return self._next

    def value(self, row: int) -> float:
        """Return the bytes per ns of a row; no row has none."""
        return float(self.worth[row]) if row >= 0 else -1.0

    def drop(self, row: int) -> None:
        """Drop the buffer of `row` in its gap and run the op that made it again."""
        self._next = -1
        self.stabs.dead[row] = True
        buffer, after, before, op = self._gap(row)
        footprint, trace = self.job.footprint, self.job.trace
        size, scratch = trace.buffers.size, self._scratch(op, buffer)
        # Of several recomputations before one op, each has its scratch when those after it have not begun.
        beside = max(self.beside[before] - int(size[buffer]), scratch, 0)
        footprint.leave(after + 1, before, int(size[buffer]))
        footprint.need(before, beside - self.beside[before])
        self.beside[before] = beside
        self.absent[buffer].append((after + 1, before))
        for b in trace.ops.reads[op].tolist():
            self.needed[b].append(before)
        self.taken.append(Recompute(buffer, after, before, before))

    def _gap(self, row: int) -> tuple[int, int, int, int]:
        g, k = self.found.gaps, int(self.rows[row])
        return int(g.buffer[k]), int(g.after[k]), int(g.before[k]), int(self.found.op[k])

    def _scratch(self, op: int, buffer: int) -> int:
        """Bytes of what the op writes besides `buffer`."""
        others = {b for b in self.job.trace.ops.writes[op].tolist() if b != buffer}
        return sum(int(self.job.trace.buffers.size[b]) for b in others)

    def _possible(self, row: int) -> bool:
        """Whether its inputs are there, nobody needs it meanwhile, and the recomputation makes no peak as high."""
        buffer, after, before, op = self._gap(row)
        n, trace, footprint = self.job.trace.n, self.job.trace, self.job.footprint
        for b in trace.ops.reads[op].tolist():
            if any((before - first) % n < stop - first for first, stop in self.absent[b]):
                return False
        if any(after < place <= before for place in self.needed[buffer]):
            return False
        return footprint.at(before) - self.beside[before] + self._scratch(op, buffer) < footprint.bytes
