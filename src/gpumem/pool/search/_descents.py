"""Depth-first searches for one height after another, of all buffers or the large ones, with greedy for the rest.

At first at the target itself, with many short tries, each in another order: no single order has to be lucky. Then for
higher goals and for fewer buffers: small ones fit into what large ones leave, so those are searched first::

    >= 0.2 %  of the peak load by search, the rest by best fit or first fit
    some      of the largest area, which is size times lifetime, likewise
    all       by search, where a height is reached but what was left to greedy sticks out

Where there are too many buffers for a single way down, the largest are placed at their own load, the rest around them.
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

CALL = 20_000  # what a search costs that ends at once
GAP = 0.00001  # over the lower bound: what is not worth a search
UNIT = 600_000_000  # the work of an effort of 1: buffers and sections looked at,
SMALL, LEAST = 2000, 20_000_000  # or that times the cube of the buffers, if that is less, and at least that
ORDERS_OF_PARTS = (END, START, FULL_LENGTH_AREA, FULL_AREA_LENGTH, LENGTH_AREA, AREA)
WAYS = tuple((order, how) for how in (LEVEL, FEWEST, IN_ORDER) for order in ORDERS_OF_PARTS)
FEW_WAYS = (  # of the rounds: each order once; not tuned
    (AREA, IN_ORDER),
    (FULL_LENGTH_AREA, IN_ORDER),
    (FULL_AREA_LENGTH, FEWEST),
    (LENGTH_AREA, FEWEST),
    (START, LEVEL),
    (END, IN_ORDER),
)
NOISE = (0.0, 0.1, 0.1, 0.5)  # of the order, in rounds that take turns
STEPS, MORE = 500, 1.1  # steps of the first round beside one a buffer, and how many more in each further one
GOALS = (0.0, 0.0, 0.5, 0.0, 0.25, 0.0, 0.75)  # of the way from the target to the best height, in turns
LARGE = 0.002  # of the peak load
POWERS = (1.0, 2.0, 0.0, 0.5)  # of the lifetime, for the area
COUNTS = (200, 100, 400, 50, 800)  # buffers of the largest area
MOST_ORDERS = 50_000  # buffers up to which all greedy orders are tried, without seconds; each takes a second then
GREEDY = 0.3  # of the seconds, where a second of the greedy orders is not enough
FIRST, GROWTH = 1000, 2  # steps that a try of the first round may take beside one a buffer, how many more in each other
SHARE = 8  # of the effort, the part that one way down may take
STEP = 2.5  # a way down through so many buffers takes about so much times their square
ABOVE = (0.0, 0.5)  # of what the best is above the target: goals of the largest buffers
LARGEST_ORDERS = (LENGTH_AREA, FULL_LENGTH_AREA, AREA, FULL_AREA_LENGTH, START, END)


@dataclass(slots=True)
class Descents:
    """The lowest placement so far, and what no placement goes below; searches from the top of an order down."""

    problem: PlacementProblem
    best: Placement
    work: float
    lowest: int = field(init=False)
    most: int = field(init=False)
    unit: int = UNIT
    asked: int = FAR  # the capacity, where there is one: shown to be out of reach, it ends the search

    def __post_init__(self) -> None:
        self.lowest = self.problem.lowest
        most = min(self.work, RATE * work.left())
        self.most = _within(self.problem, most / SHARE) if self.best.height > self.lowest else 0

    @classmethod
    def of(cls, problem: PlacementProblem, target: int, effort: float, seed: int) -> Descents:
        """Start with the greedy placements."""
        for name, value in (("target", target), ("effort", effort), ("seed", seed)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: {value} is not a finite number >= 0")
        every = work.hurried() or len(problem.free) <= MOST_ORDERS
        with work.part(share=GREEDY):
            best = lowest(placements(problem, None if every else ["size"]), max(target, problem.lowest))
        unit = min(UNIT, max(LEAST, SMALL * len(problem.free) ** 3))
        return cls(problem, best, effort * unit, unit=unit)

    def goal(self, target: int) -> int:
        """Return the height at which the search stops: the target, or as low as is worth a search."""
        return max(target, int(self.lowest * (1 + GAP)))

    def tries(self, target: int, effort: float, rng: np.random.Generator) -> Iterator[None]:
        """Look for a placement of all buffers at the target, in one order after another, more steps each round.

        Yields after each round.
        """
        free, turn, goal = np.sort(self.problem.free), 0, max(target, self.lowest)
        self.work = effort
        if self.most < len(free):
            yield from self.largest(target)
        while self.most == len(free) and self.going(target) and goal >= self.lowest:
            for way in WAYS:
                noise = np.exp(NOISE[turn % 2] * rng.standard_normal(len(free)))
                self.pack(free, goal, way, noise, FIRST * GROWTH ** min(turn, 40), self.work)
                if not self.going(target) or goal < self.lowest:
                    break
            self._tell()
            turn += 1
            yield

    def largest(self, target: int) -> Iterator[None]:
        """Place the largest buffers at their own load, or not far above it, in one order after another; more each time.

        So what is left above them is in one piece, for the rest. Below the goal of all they would lie all over it.
        Yields after each order.
        """
        for order in LARGEST_ORDERS:
            count, reached = self.most, True
            while reached and count < len(self.problem.free) and self.going(target):
                count = min(GROWTH * count, len(self.problem.free))
                affordable = STEP * count**2 <= min(self.work, RATE * work.left())
                reached = affordable and self.stacked(count, order, target)
            self._tell()
            yield

    def stacked(self, count: int, order: int, target: int) -> bool:
        """Place the largest buffers at their own load, or above it by a part of what the best is above the target."""
        ids = np.sort(self.problem.free[:count])
        load = self.problem.height(self.problem.load(ids))
        for part in ABOVE:
            goal = load + int(part * (self.best.height - target))
            if self.pack(ids, goal, (order, IN_ORDER), np.ones(count), FIRST, self.work) == SOLVED:
                return True
        return False

    def rounds(self, target: int, rng: np.random.Generator) -> None:
        """Search in rounds: one goal, in several orders."""
        turn = 0
        while self.going(target):
            goal = max(target, self.lowest)
            goal += int(GOALS[turn % len(GOALS)] * (self.best.height - goal))
            steps = int(STEPS * MORE ** min(turn, 100))
            for k, way in enumerate(FEW_WAYS):
                noise = NOISE[turn % len(NOISE)] if turn < len(NOISE) else NOISE[1 + turn % 3]
                draws = np.exp(noise * rng.standard_normal(len(self.problem.free)))
                self.attempt(goal, steps, turn * len(FEW_WAYS) + k, way, draws)
                if self.best.height <= goal or goal < self.lowest or not self.going(target):
                    break
            self._tell()
            turn = turn - turn % len(GOALS) if self.best.height <= goal and turn % len(GOALS) else turn + 1

    def _tell(self) -> None:
        work.tell(f"{self.best.height / max(self.lowest, 1):.4f} of the lower bound")

    def going(self, target: int) -> bool:
        """Whether there is something left to find and to spend."""
        left = self.best.height > max(target, self.lowest) and not self.refuted
        return self.most > 0 and left and self.work > 0 and not work.over()

    @property
    def refuted(self) -> bool:
        """Whether no placement has the height that was asked for."""
        return self.lowest > self.asked

    def attempt(self, goal: int, steps: int, turn: int, way: tuple[int, int], noise: F64) -> None:
        """Look for a placement no higher than `goal`, of some buffers and then of more."""
        reached = True
        for level, places in enumerate(self._levels(turn)):
            if len(places) == self.most and not reached:
                return  # not even fewer
            ids = np.sort(self.problem.free[places])  # equals go by position
            status = self.pack(ids, goal, way, noise[places], steps, self.work)
            if status == IMPOSSIBLE or self.best.height <= goal:
                return
            reached = status == SOLVED or (reached and level > 0)

    def pack(self, ids: I64, goal: int, way: tuple[int, int], weight: F64, steps: int, most: float) -> int:
        """Search for some buffers below `goal`; keep what that proves, or the placement around them if it is lower."""
        limit, instance = int(min(most, RATE * work.left(), 2**62)), self.problem.instance(ids, goal)
        status, spent, offset = pack(instance, *way, weight, nodes=len(ids) + steps, work=limit)
        self.work -= spent + CALL
        if status == IMPOSSIBLE:  # of these buffers, so of all
            self.lowest = max(self.lowest, goal + 1)
        if status == SOLVED:
            self.keep(ids, offset)
        return status

    def keep(self, ids: I64, offset: I64) -> None:
        """Place the rest around some buffers; keep that if it is lower than the best so far."""
        self.best = min(self.best, self.problem.around(ids, offset), key=lambda p: p.height)
        self.work -= REST * (len(self.problem.free) - len(ids))

    def result(self) -> Placement:
        """Return the lowest placement with what was proved."""
        return replace(self.best, bound=min(self.lowest, self.best.height))

    def _levels(self, turn: int) -> Iterator[I64]:
        """Yield buffers to search for: those of the largest size, of the largest area, and all there is time for."""
        b, free = self.problem.trace.buffers, self.problem.free[: self.most]
        large = int(np.count_nonzero(b.size[free] >= LARGE * self.problem.trace.peak_live_bytes))
        if 0 < large < 0.8 * len(free):
            yield np.arange(large)
        weight = b.size[free] * (b.end - b.start)[free].astype(np.float64) ** POWERS[turn % len(POWERS)]
        some = COUNTS[turn % len(COUNTS)]
        if len(free) >= 1.2 * some:
            yield np.sort(np.argsort(-weight, kind="stable")[:some])
        yield np.arange(len(free))


def _within(problem: PlacementProblem, most: float) -> int:
    """Return how many of the largest free buffers one way down can take in."""
    return bisect_right(range(1, len(problem.free) + 1), most, key=lambda count: _way_down(problem, count))


def _way_down(problem: PlacementProblem, count: int) -> float:
    """Return about what it takes to place that many of the largest buffers without failing."""
    b, n, ids = problem.trace.buffers, problem.trace.n, problem.free[:count]
    points = np.unique(np.concatenate([b.start[ids], b.end[ids]]) % n)
    spans: NDArray[np.float64] = (b.end - b.start)[ids] / n * len(points)
    return float(count * (4 * count + spans.sum()) / 2)
