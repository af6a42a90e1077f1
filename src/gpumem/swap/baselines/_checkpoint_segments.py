"""Segments on two levels, and the search for their cuts.

Time goes to the right; `|` cuts segments, `:` their parts. What is used in a later segment than its own is kept (K).
What is used in a later part of its segment comes back (P) when the segment's backward begins, the rest (.) when that of
its part does::

    forward    . . : P . | K . : P . | K . : P .
    backward                                    [P . ][. . ][P . ][. . ] ...
                                                seg 3       seg 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.swap.baselines._checkpoint_prices import WORK, Found, Prices
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.trace import I64, Bool, Trace

NO_CUT, SEGMENT, PART = range(3)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # of segments to begin with
PARTS = (1, 2, 4)
STEPS = (1, 2, 3, 4, 8)  # by how many places a cut is shifted
STARTS = 8  # how many of the first guesses are improved at most
SHARE = 4  # the part of the work that each may take, and what is left for single gaps


@dataclass(slots=True, eq=False, kw_only=True)
class Levels(Prices):
    """Gaps over the turn, in the order in which their values are made, and the search over plans for them."""

    made: I64  # the whole write of each
    costly: Bool  # whether its closure costs flops
    places: I64  # where a cut may be: before these ops

    @classmethod
    def of(cls, trace: Trace, account: MadeAgain, made: I64, costly: Bool, *, limit: int) -> Levels:
        """Number the places: values begin where they are written as a whole, so that no cut divides one."""
        b, turn = trace.buffers, int(account.before.min(initial=trace.n))
        dead = np.flatnonzero(~b.host & ~b.persistent & (b.end <= turn) & (b.size > 0))
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

    def search(self, *, hold: bool) -> Found:
        """Return the cheapest plan found within the limit, or the one of the lowest peak.

        The first rung keeps what costs flops and brings the rest back right before its use. Then cuts are shifted,
        added and removed one at a time, from the best of some first guesses. At last single gaps are kept after all,
        or brought back later, and dead buffers held, where that helps.
        """
        none = np.full(len(self.account.size), -1, np.int64)
        best = [self.price(np.zeros(len(self.made), np.int64), none)]
        share = WORK // SHARE
        if not self.over():
            best.append(self.price(np.where(self.costly, 0, self.account.before), none))
        if self.rank(best[-1])[0] == self.limit:
            best.append(self.single(best[-1], self.left - share))
        pairs = work.each((segments, parts) for segments in COUNTS for parts in PARTS)
        guesses = sorted((self.guess(*pair, none) for pair in pairs), key=lambda g: self.rank(g[1]))
        for cut, found in guesses[:STARTS]:
            if self.left >= share:
                best.append(self.shift(cut, found, self.left - share))
        found = self.single(min(best, key=self.rank), share // 2)
        return self.hold(found) if hold else found

    def guess(self, segments: int, parts: int, none: I64) -> tuple[I64, Found]:
        """So many segments that begin with about the same number of bytes, and so many parts of each."""
        a, cut = self.account, np.zeros(len(self.places), np.int64)
        through = np.cumsum(a.size[a.buffer]).astype(np.float64)
        for j in range(1, segments * parts) if len(through) else ():
            k = int(np.searchsorted(through, through[-1] * j / (segments * parts)))
            cut[np.searchsorted(self.places, self.made[k])] = PART if j % parts else SEGMENT
        return cut, self.price(self.back(cut), none)

    def back(self, cut: I64) -> I64:
        """Before which op each gap is made again under cuts."""
        segments, parts = self.places[cut == SEGMENT], self.places[cut != NO_CUT]
        dropped = self.number(segments, self.made) == self.number(segments, self.account.after)
        inner = dropped & (self.number(parts, self.made) == self.number(parts, self.account.after))
        at = np.where(inner, self.first_use(parts, inner), np.where(dropped, self.first_use(segments, dropped), 0))
        return np.where(at > self.account.after + 1, at, 0)

    @staticmethod
    def number(cuts: I64, ops: I64) -> I64:
        """Which of the stretches between cuts an op lies in."""
        return np.searchsorted(cuts, ops, side="right")

    def first_use(self, cuts: I64, mine: Bool) -> I64:
        """Of each gap the first backward use of its stretch, counting those of `mine`."""
        stretch = self.number(cuts, self.made)
        first = np.full(len(cuts) + 1, len(self.account.duration), np.int64)
        np.minimum.at(first, stretch[mine], self.account.before[mine])
        return first[stretch]

    def shift(self, cut: I64, found: Found, stop: int) -> Found:
        """Move cuts one at a time while that helps, until only `stop` of the work is left."""
        better = True
        while better:
            better = False
            for source, target, level in self.moves(cut, found):
                if self.over() or self.left <= stop:
                    return found
                if (source >= 0 and not cut[source]) or (target >= 0 and target != source and cut[target]):
                    continue  # another move came first
                moved = cut.copy()
                if source >= 0:
                    moved[source] = NO_CUT
                if target >= 0:
                    moved[target] = level
                tried = self.price(self.back(moved), found.until)
                if self.rank(tried) < self.rank(found):
                    cut, found, better = moved, tried, True
        return found

    def moves(self, cut: I64, found: Found) -> list[tuple[int, int, int]]:
        """From place, to place, level; -1 is nowhere. In any order, the same each time.

        Above the limit a new cut helps where the values lie that are back at the peak, if any are.
        """
        on, low, high = np.flatnonzero(cut).tolist(), 0, len(cut)
        peak = found.costs.position // 2
        if (
            found.costs.peak > self.limit
            and (there := (found.at > 0) & (found.at <= peak) & (peak <= self.account.before)).any()
        ):
            low, high = np.searchsorted(self.places, [self.made[there].min(), self.made[there].max() + 1]).tolist()
        moves = [(i, -1, NO_CUT) for i in on] + [(i, i, SEGMENT + PART - int(cut[i])) for i in on]
        moves += [(i, i + d * k, int(cut[i])) for i in on for k in STEPS for d in (-1, 1) if 0 <= i + d * k < len(cut)]
        moves += [(-1, j, level) for j in range(low, high) if not cut[j] for level in (SEGMENT, PART)]
        self.random.shuffle(moves)
        return moves
