"""Segments on two levels, and the search for their cuts.

Time goes to the right; `|` cuts segments, `:` their parts. What is used in a later segment than its own is kept (K).
What is used in a later part of its segment is recomputed (P) when the segment's backward begins, the rest (.) when that
of its part does::

    forward    . . : P . | K . : P . | K . : P .
    backward                                    [P . ][. . ][P . ][. . ] ...
                                                seg 3       seg 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.swap.baselines._checkpoint_prices import WORK, PlanSearch, PricedPlan
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.trace import I64, Bool, Trace

NO_CUT, SEGMENT, PART = range(3)  # what is cut at a place
NOWHERE = -1
# Not tuned, all of these: guesses that span the nets of `benchmarks/speed/checkpoint.py`, and small shifts.
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # of segments of a first guess
PARTS = (1, 2, 4)  # of each segment of it
SHIFTS = (1, 2, 3, 4, 8)  # by how many places a cut is shifted
STARTS = 8  # how many of the first guesses are improved at most
SHARE = 4  # the part of the work that each of these may take; it is also what is left for single gaps


class CutMove(NamedTuple):
    """A change of one cut: the cut at place `source` goes, and one of `level` stands at place `target`.

    A new cut has no source, a removed one no target (`NOWHERE`); where both are the same the cut changes its level.
    """

    source: int
    target: int
    level: int

    def is_open(self, cut: I64) -> bool:
        """Return whether the cut is still there and the target still free: earlier moves of a round change both."""
        has_source = self.source == NOWHERE or cut[self.source] != NO_CUT
        return has_source and (self.target in {NOWHERE, self.source} or cut[self.target] == NO_CUT)

    def apply(self, cut: I64) -> I64:
        """Return the cuts after the move."""
        moved = cut.copy()
        if self.source != NOWHERE:
            moved[self.source] = NO_CUT
        if self.target != NOWHERE:
            moved[self.target] = self.level
        return moved


@dataclass(slots=True, eq=False, kw_only=True)
class SegmentSearch(PlanSearch):
    """Gaps over the turn from forward to backward, in the order in which their values are made, and the search."""

    made: I64  # of each gap the op that writes its value as a whole
    costly: Bool  # whether recomputing it costs flops
    places: I64  # where a cut may be: before these ops

    @classmethod
    def of(cls, trace: Trace, account: RecomputableGaps, made: I64, costly: Bool, *, limit: int) -> SegmentSearch:
        """Number the places: values begin where they are written as a whole, so that no cut divides one."""
        buffers, turn = trace.buffers, int(account.before.min(initial=trace.n))
        dead = np.flatnonzero(~buffers.host & ~buffers.persistent & (buffers.end <= turn) & (buffers.size > 0))
        return cls(
            account=account,
            trace=trace,
            last=account.before,
            dead=dead,
            limit=limit,
            made=made,
            costly=costly,
            places=np.unique(made),
        )

    def search(self, *, hold: bool) -> PricedPlan:
        """Return the cheapest plan found within the limit, or the one of the lowest peak.

        The first rung keeps what costs flops and recomputes the rest right before its use. Then cuts are shifted,
        added and removed one at a time, from the best of some first guesses. At last single gaps are kept after all,
        or recomputed later, and dead buffers held, where that lowers the rank.
        """
        none_held = np.full(len(self.account.size), -1, np.int64)
        plans = [self.price(np.zeros(len(self.made), np.int64), none_held)]
        share = WORK // SHARE
        if not self.is_over():
            plans.append(self.price(np.where(self.costly, 0, self.account.before), none_held))
        if self.rank(plans[-1])[0] == self.limit:
            plans.append(self.improve_gaps(plans[-1], self.left - share))
        pairs = work.each((segments, parts) for segments in COUNTS for parts in PARTS)
        guesses = sorted((self.guess(*pair, none_held) for pair in pairs), key=lambda guess: self.rank(guess[1]))
        for cut, plan in guesses[:STARTS]:
            if self.left >= share:
                plans.append(self.improve_cuts(cut, plan, self.left - share))
        best = self.improve_gaps(min(plans, key=self.rank), share // 2)
        return self.hold(best) if hold else best

    def guess(self, segments: int, parts: int, none_held: I64) -> tuple[I64, PricedPlan]:
        """So many segments that begin with about the same number of bytes, and so many parts of each."""
        account, cut = self.account, np.zeros(len(self.places), np.int64)
        through = np.cumsum(account.size[account.buffer]).astype(np.float64)
        for part in range(1, segments * parts) if len(through) else ():
            gap = int(np.searchsorted(through, through[-1] * part / (segments * parts)))
            cut[np.searchsorted(self.places, self.made[gap])] = PART if part % parts else SEGMENT
        return cut, self.price(self.recomputed_at(cut), none_held)

    def recomputed_at(self, cut: I64) -> I64:
        """Before which op each gap's value is recomputed under cuts; 0: it is kept."""
        segments, parts = self.places[cut == SEGMENT], self.places[cut != NO_CUT]
        dropped = self.stretch(segments, self.made) == self.stretch(segments, self.account.after)
        inner = dropped & (self.stretch(parts, self.made) == self.stretch(parts, self.account.after))
        at = np.where(inner, self.first_use(parts, inner), np.where(dropped, self.first_use(segments, dropped), 0))
        return np.where(at > self.account.after + 1, at, 0)

    @staticmethod
    def stretch(cuts: I64, ops: I64) -> I64:
        """Which of the stretches between cuts an op lies in."""
        return np.searchsorted(cuts, ops, side="right")

    def first_use(self, cuts: I64, chosen: Bool) -> I64:
        """Of each gap the first backward use of a `chosen` gap's value in its stretch."""
        stretch = self.stretch(cuts, self.made)
        first = np.full(len(cuts) + 1, len(self.account.duration), np.int64)
        np.minimum.at(first, stretch[chosen], self.account.before[chosen])
        return first[stretch]

    def improve_cuts(self, cut: I64, best: PricedPlan, stop: int) -> PricedPlan:
        """Move cuts one at a time while the rank falls, until only `stop` of the work is left."""
        has_converged = False
        while not has_converged:
            has_converged = True
            for move in self.moves(cut, best):
                if self.is_over() or self.left <= stop:
                    return best
                if not move.is_open(cut):
                    continue
                moved = move.apply(cut)
                proposal = self.price(self.recomputed_at(moved), best.until)
                if self.rank(proposal) < self.rank(best):
                    cut, best, has_converged = moved, proposal, False
        return best

    def moves(self, cut: I64, plan: PricedPlan) -> list[CutMove]:
        """Return the moves of a round in random order, the same each time.

        Above the limit, new cuts are tried only among the values that are recomputed by the peak and read after it, if
        there are any: only between these does a cut move a recomputation over the peak.
        """
        cuts, low, high = np.flatnonzero(cut).tolist(), 0, len(cut)
        peak = plan.costs.position // 2
        if plan.costs.peak > self.limit:
            at_peak = (plan.at > 0) & (plan.at <= peak) & (peak <= self.account.before)
            if at_peak.any():
                ends = [self.made[at_peak].min(), self.made[at_peak].max() + 1]
                low, high = np.searchsorted(self.places, ends).tolist()
        moves = [CutMove(place, NOWHERE, NO_CUT) for place in cuts]
        moves += [CutMove(place, place, SEGMENT + PART - int(cut[place])) for place in cuts]
        for place in cuts:
            targets = (place + sign * shift for shift in SHIFTS for sign in (-1, 1))
            moves += [CutMove(place, target, int(cut[place])) for target in targets if 0 <= target < len(cut)]
        moves += [
            CutMove(NOWHERE, place, level) for place in range(low, high) if not cut[place] for level in (SEGMENT, PART)
        ]
        self.random.shuffle(moves)
        return moves
