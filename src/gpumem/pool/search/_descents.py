"""Depth-first searches for one height after another, of all buffers or the large ones, with greedy for the rest.

At first at the target itself, with many short tries, each in another order: no single order has to be lucky. Then for
higher goals and for fewer buffers: small ones fit into what large ones leave, so those are searched first::

    >= 0.2 %  of the peak live bytes by search, the rest by best fit or first fit
    some      of the largest area, which is size times lifetime, likewise
    all       by search, where a height is reached but what greedy placed sticks out

Where there are too many buffers for a single descent, the largest are placed at their own peak live bytes, and the
rest around them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpumem.base import work
from gpumem.pool.search._depth_first import FEWEST, IMPOSSIBLE, IN_ORDER, LEVEL, SOLVED, pack
from gpumem.pool.search._packing import FAR
from gpumem.pool.search._parts import AREA, END, FULL_AREA_LENGTH, FULL_LENGTH_AREA, LENGTH_AREA, START
from gpumem.pool.search._problem import RATE, REST, PlacementProblem
from gpumem.pool.search.greedy import lowest, placements
from gpumem.trace import F64, I64
from gpumem.trace.placement import Placement

# Units of work (see `_problem`) that a search costs which ends at once. Not tuned.
CALL = 20_000
# What is not worth a search: 0.001 % over the lower bound. Not tuned.
GAP = 0.00001
# The work of an effort of 1: that many units, 2 to 12 s; or, so that small instances do not take as long, SMALL times
# the cube of the buffers, but at least LEAST. Not tuned.
UNIT = 600_000_000
SMALL, LEAST = 2000, 20_000_000

# The tries, at the target: each order with each choice, many and short, so that no single order has to be lucky.
ORDERS_OF_PARTS = (END, START, FULL_LENGTH_AREA, FULL_AREA_LENGTH, LENGTH_AREA, AREA)
VARIANTS = tuple((order, choice) for choice in (LEVEL, FEWEST, IN_ORDER) for order in ORDERS_OF_PARTS)
# Buffers that a try of the first round may place beside one each, and how many times as many in each further round:
# with these minimalloc's A to E reach their capacity in 53 ms at most (benchmarks/speed/pool, 23 November 2026).
FIRST, GROWTH = 1000, 2

# The rounds, at one goal after another. Not tuned.
FEW_VARIANTS = (  # each order once
    (AREA, IN_ORDER),
    (FULL_LENGTH_AREA, IN_ORDER),
    (FULL_AREA_LENGTH, FEWEST),
    (LENGTH_AREA, FEWEST),
    (START, LEVEL),
    (END, IN_ORDER),
)
NOISE = (0.0, 0.1, 0.1, 0.5)  # standard deviation of the logarithm of what an order goes by, round by round
STEPS, MORE = 500, 1.1  # buffers to place in the first round beside one each, and how many times as many in each other
GOALS = (0.0, 0.0, 0.5, 0.0, 0.25, 0.0, 0.75)  # from the target (0) to the best height (1), in turns
LARGE = 0.002  # of the peak live bytes: from this size on a buffer is large
POWERS = (1.0, 2.0, 0.0, 0.5)  # of the lifetime, in the area by which buffers are picked, in turns
COUNTS = (200, 100, 400, 50, 800)  # buffers of the largest area, in turns

# Up to so many buffers all twelve greedy placements are made where no seconds are given: one takes a second then.
MOST_ORDERS = 50_000
GREEDY = 0.3  # of the seconds, for greedy orders, where a second is not enough. Not tuned

# Where one descent through all buffers takes too much, the largest are placed at their own peak live bytes. Of S_1,
# 8,000 buffers with the rest around them end at 1.00002 of the lower bound so, and at 1.0018 below the goal of all
# (docs/guides/placement.md).
SHARE = 8  # the part of the effort that one descent may take: an eighth. Not tuned
STEP = 2.5  # times the square of the buffers: about the work of a descent through the largest
ABOVE = (0.0, 0.5)  # goals: their own peak, and half as far above it as the best is above the target. Not tuned
LARGEST_ORDERS = (LENGTH_AREA, FULL_LENGTH_AREA, AREA, FULL_AREA_LENGTH, START, END)


@dataclass(slots=True)
class Descents:
    """The lowest placement so far, and the lower bound; depth-first searches, each from the first buffer on."""

    problem: PlacementProblem
    best: Placement
    work: float  # units that are left to spend
    lower_bound: int = field(init=False)  # bytes
    most: int = field(init=False)  # buffers that one descent may be of
    unit: int = UNIT
    capacity: int = FAR  # in bytes, where there is one: proved to be out of reach, it ends the search

    def __post_init__(self) -> None:
        self.lower_bound = self.problem.lower_bound
        most = min(self.work, RATE * work.left())
        self.most = _affordable(self.problem, most / SHARE) if self.best.height > self.lower_bound else 0

    @classmethod
    def of(cls, problem: PlacementProblem, target: int, effort: float, seed: int) -> Descents:
        """Start with the greedy placements."""
        for name, value in (("target", target), ("effort", effort), ("seed", seed)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: {value} is not a finite number >= 0")
        every = work.hurried() or len(problem.free) <= MOST_ORDERS
        with work.part(share=GREEDY):
            best = lowest(placements(problem, None if every else ["size"]), max(target, problem.lower_bound))
        unit = min(UNIT, max(LEAST, SMALL * len(problem.free) ** 3))
        return cls(problem, best, effort * unit, unit=unit)

    def goal(self, target: int) -> int:
        """Return the height at which the search stops: the target, or as low as is worth a search."""
        return max(target, int(self.lower_bound * (1 + GAP)))

    def tries(self, target: int, effort: float, rng: np.random.Generator) -> Iterator[None]:
        """Look for a placement of all buffers at the target, in one order after another, more steps each round.

        Yields after each round.
        """
        free, turn, goal = np.sort(self.problem.free), 0, max(target, self.lower_bound)
        self.work = effort
        if self.most < len(free):
            yield from self.largest(target)
        while self.most == len(free) and self.going(target) and goal >= self.lower_bound:
            for variant in VARIANTS:
                noise = np.exp(NOISE[turn % 2] * rng.standard_normal(len(free)))
                self.pack(free, goal, variant, noise, steps=FIRST * GROWTH ** min(turn, 40), most=self.work)
                if not self.going(target) or goal < self.lower_bound:
                    break
            self._report()
            turn += 1
            yield

    def largest(self, target: int) -> Iterator[None]:
        """Place the largest buffers at their own peak live bytes, or little above, in one order after another.

        Each time it is more of them.
        So what is left above them is in one piece, for the rest. Below the goal of all they would lie all over it.
        Yields after each order.
        """
        for order in LARGEST_ORDERS:
            count, reached = self.most, True
            while reached and count < len(self.problem.free) and self.going(target):
                count = min(GROWTH * count, len(self.problem.free))
                affordable = STEP * count**2 <= min(self.work, RATE * work.left())
                reached = affordable and self.stacked(count, order, target)
            self._report()
            yield

    def stacked(self, count: int, order: int, target: int) -> bool:
        """Place the largest at their own peak live bytes, or higher, by a part of what the best is above the target."""
        ids = np.sort(self.problem.free[:count])
        own_peak = self.problem.height(self.problem.load(ids))
        for part in ABOVE:
            goal = own_peak + int(part * (self.best.height - target))
            if self.pack(ids, goal, (order, IN_ORDER), np.ones(count), steps=FIRST, most=self.work) == SOLVED:
                return True
        return False

    def rounds(self, target: int, rng: np.random.Generator) -> None:
        """Search in rounds: one goal, in several orders."""
        turn = 0
        while self.going(target):
            goal = max(target, self.lower_bound)
            goal += int(GOALS[turn % len(GOALS)] * (self.best.height - goal))
            steps = int(STEPS * MORE ** min(turn, 100))
            for place, variant in enumerate(FEW_VARIANTS):
                noise = NOISE[turn % len(NOISE)] if turn < len(NOISE) else NOISE[1 + turn % 3]
                draws = np.exp(noise * rng.standard_normal(len(self.problem.free)))
                self.attempt(goal, variant, draws, steps=steps, turn=turn * len(FEW_VARIANTS) + place)
                if self.best.height <= goal or goal < self.lower_bound or not self.going(target):
                    break
            self._report()
            turn = turn - turn % len(GOALS) if self.best.height <= goal and turn % len(GOALS) else turn + 1

    def _report(self) -> None:
        work.tell(f"{self.best.height / max(self.lower_bound, 1):.4f} of the lower bound")

    def going(self, target: int) -> bool:
        """Whether there is something left to find and to spend."""
        left = self.best.height > max(target, self.lower_bound) and not self.refuted
        return self.most > 0 and left and self.work > 0 and not work.over()

    @property
    def refuted(self) -> bool:
        """Whether no placement has the height that was asked for."""
        return self.lower_bound > self.capacity

    def attempt(self, goal: int, variant: tuple[int, int], noise: F64, *, steps: int, turn: int) -> None:
        """Look for a placement no higher than `goal`, of some buffers and then of more."""
        reached = True
        for level, places in enumerate(self._levels(turn)):
            if len(places) == self.most and not reached:
                return  # not even fewer buffers were placed
            ids = np.sort(self.problem.free[places])  # equals go by position
            status = self.pack(ids, goal, variant, noise[places], steps=steps, most=self.work)
            if status == IMPOSSIBLE or self.best.height <= goal:
                return
            reached = status == SOLVED or (reached and level > 0)

    def pack(self, ids: I64, goal: int, variant: tuple[int, int], weight: F64, *, steps: int, most: float) -> int:
        """Search for some buffers below `goal`; keep what that proves, or the placement around them if it is lower."""
        limit, instance = int(min(most, RATE * work.left(), 2**62)), self.problem.instance(ids, goal)
        status, spent, offset = pack(instance, *variant, weight, nodes=len(ids) + steps, work=limit)
        self.work -= spent + CALL
        if status == IMPOSSIBLE:  # of these buffers, so of all
            self.lower_bound = max(self.lower_bound, goal + 1)
        if status == SOLVED:
            self.keep(ids, offset)
        return status

    def keep(self, ids: I64, offset: I64) -> None:
        """Place the rest around some buffers; keep that if it is lower than the best so far."""
        self.best = min(self.best, self.problem.around(ids, offset), key=lambda placement: placement.height)
        self.work -= REST * (len(self.problem.free) - len(ids))

    def result(self) -> Placement:
        """Return the lowest placement with what was proved."""
        return replace(self.best, bound=min(self.lower_bound, self.best.height))

    def _levels(self, turn: int) -> Iterator[I64]:
        """Yield buffers to search for: those of the largest size, of the largest area, and all there is time for."""
        buffers, free = self.problem.trace.buffers, self.problem.free[: self.most]
        large = int(np.count_nonzero(buffers.size[free] >= LARGE * self.problem.trace.peak_live_bytes))
        # Nearly all buffers are searched as all of them: 0.8 and 1.2 are not tuned.
        if 0 < large < 0.8 * len(free):
            yield np.arange(large)
        lifetime = (buffers.end - buffers.start)[free].astype(np.float64)
        weight = buffers.size[free] * lifetime ** POWERS[turn % len(POWERS)]
        some = COUNTS[turn % len(COUNTS)]
        if len(free) >= 1.2 * some:
            yield np.sort(np.argsort(-weight, kind="stable")[:some])
        yield np.arange(len(free))


def _affordable(problem: PlacementProblem, most: float) -> int:
    """Return how many of the largest free buffers one descent can take in."""
    return bisect_right(range(1, len(problem.free) + 1), most, key=lambda count: _descent_work(problem, count))


def _descent_work(problem: PlacementProblem, count: int) -> float:
    """Return about what it takes to place that many of the largest buffers without failing."""
    buffers, steps, ids = problem.trace.buffers, problem.trace.n, problem.free[:count]
    points = np.unique(np.concatenate([buffers.start[ids], buffers.end[ids]]) % steps)
    spans: NDArray[np.float64] = (buffers.end - buffers.start)[ids] / steps * len(points)
    return float(count * (4 * count + spans.sum()) / 2)
