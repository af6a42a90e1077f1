"""One job in TENSILE's recomputation rounds (section 4.4): what its peak holds, by bytes saved per ns (MSPS)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpumem.swap.facts.biggest import Biggest, biggest
from gpumem.swap.facts.recompute import recomputable
from gpumem.swap.facts.recompute_scratch import beside, states
from gpumem.swap.plan import Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.swap.plan.replay import Device, Refused, Replay, replay
from gpumem.swap.plan.values import Origins
from gpumem.swap.tensile.swap_rounds import SwapRounds
from gpumem.trace import I64


class RecomputeRounds:
    """What is left to drop after the swap rounds: gaps of buffers that are never swapped ("never been released").

    A recomputation reads its sources on the device, so they must be there, and stay there: what the recomputations
    before an op read is not dropped around that op.
    """

    def __init__(self, job: SwapRounds, duration: I64) -> None:
        self.job, self.taken = job, list[Recompute]()
        trace = job.trace
        spans = gaps(trace)
        never_swapped = ~np.isin(spans.buffer, job.buffers) & ~trace.buffers.persistent[spans.buffer]
        never_swapped &= (spans.before > spans.after + 1) & (spans.before < trace.n) & (spans.size > 0)
        values = recomputable(trace, job.machine, spans.where(never_swapped), earlier=False)
        worth = values.gaps.size / np.maximum(values.times(duration), 1)
        rows = np.flatnonzero(values.ok)
        rows = rows[np.argsort(-worth[rows], kind="stable")]
        self.gaps, self.worth = values.gaps.where(rows), worth[rows]
        self.by_worth = Biggest.of(self.gaps.after + 1, self.gaps.before, trace.n)
        self.device = Device(trace, Origins.of(trace), job.swaps()[0])
        self.before: dict[int, list[Recompute]] = defaultdict(list)  # what is recomputed before each op
        self.scratch: dict[int, int] = defaultdict(int)  # bytes needed before an op, beside what is counted there
        self.readers: dict[int, set[int]] = defaultdict(set)  # before which ops recomputations read a buffer
        self._next, self._replay = (
            -1,
            Replay(place=0, wanted=frozenset(), held={}, recomputed_ops=(), spans={}),
        )  # the row that `best` returned, and its ops

    @property
    def peak(self) -> int:
        """The bytes at the peak."""
        return self.job.peak

    def best(self) -> int:
        """Return the row that saves most bytes per ns at the peak, -1 if there is none left."""
        while self._next < 0:
            row = biggest(self.by_worth, self.job.footprint.op)
            if row < 0:
                return -1
            if self._is_possible(row):
                self._next = row
        return self._next

    def msps(self, row: int) -> float:
        """Return the bytes that a row saves per ns (the paper's MSPS); -1, less than any, without a row."""
        return float(self.worth[row]) if row >= 0 else -1.0

    def drop(self, row: int) -> None:
        """Recompute the buffer of the `best` row after its gap, unless the host cannot keep its generators' states."""
        replayed, recompute, trace, footprint = self._replay, self._recompute(row), self.job.trace, self.job.footprint
        self._next = -1
        self.by_worth.length[row] = 0
        if not self.job.keep(states(trace, [replayed], self.job.host.states)):
            return
        at, scratch = recompute.at, beside(replayed, trace.buffers.size)
        footprint.leave(recompute.after + 1, at, int(trace.buffers.size[recompute.buffer]))
        footprint.need(at, scratch - self.scratch[at])
        self.scratch[at] = scratch
        for buffer in replayed.sources:
            self.readers[buffer].add(at)
        self.device.decide([recompute])
        self.before[at].append(recompute)
        self.taken.append(recompute)

    def _recompute(self, row: int) -> Recompute:
        columns = self.gaps.buffer, self.gaps.after, self.gaps.before
        buffer, after, before = (int(column[row]) for column in columns)
        return Recompute(buffer, after, before, before)

    def _is_possible(self, row: int) -> bool:
        """Whether its sources are there, no recomputation reads it meanwhile, and its scratch makes no peak as high."""
        recompute, footprint = self._recompute(row), self.job.footprint
        if any(recompute.after < op <= recompute.at for op in self.readers[recompute.buffer]):
            self.by_worth.length[row] = 0  # readers only become more, so it stays impossible
            return False
        try:
            self._replay = replay(self.device, [*self.before[recompute.at], recompute], recompute.at)
        except Refused:
            self.by_worth.length[row] = 0
            return False
        scratch = beside(self._replay, self.job.trace.buffers.size)
        return footprint.at(recompute.at) - self.scratch[recompute.at] + scratch < footprint.peak
