"""The Pareto front of splits of a joint graph, by peak live bytes and recomputation, as far as a search finds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpumem.torch.compiled.splits import Splits
from gpumem.torch.internals.partitioner import dp_knapsack

Ops = frozenset[int]
WORK = 400_000  # nodes of graphs that a search evaluates, over all splits: some seconds; not tuned
STRIDES = (2, 3, 4, 5, 6, 8, 16, 32)  # every so manieth op is kept: starts of the search; not tuned
KNAPSACKS = 20  # budgets, above 0, that PyTorch's own solver is asked for: no worse than it at these; not tuned
LEAST = 60  # splits that a search evaluates however large the graph is; not tuned
PREFIXES = 32  # parts of a ranking, whose prefixes are starts; not tuned
OFFSETS = 4  # offsets of each stride, at most; not tuned
NO_BYTES = 1e-12  # in the place of a memory of 0, to divide by


@dataclass(frozen=True, order=True, slots=True)
class Point:
    """A split: the peak live bytes, the flops that are recomputed, its base, and the ops that may be recomputed."""

    peak: int
    recomputed: float
    base: int
    ops: tuple[int, ...]


class Frontier:
    """The Pareto front of splits, by peak and recomputation, the lowest peak first; `take` adds to it."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self.points: list[Point] = []
        self.tries = max(LEAST, WORK // len(splits.joint.nodes))

    def take(self, ops: Ops, base: int) -> None:
        """Evaluate a split, and keep it if no other is as good in both; those that it beats in both go."""
        recomputed = tuple(sorted(ops & self.splits.allowed))
        split = self.splits.of(base, recomputed)
        if split and not any(
            other.peak <= split.peak and other.recomputed <= split.recomputed for other in self.points
        ):
            others = [other for other in self.points if other.peak < split.peak or other.recomputed < split.recomputed]
            self.points = sorted([*others, Point(split.peak, split.recomputed, base, recomputed)])

    @property
    def goes_on(self) -> bool:
        """Whether more splits may be evaluated."""
        return self.splits.tried < self.tries

    def within(self, peak: int) -> Point:
        """Return the point of least recomputation within a peak; that of the least peak where none is within it."""
        return next((point for point in reversed(self.points) if point.peak <= peak), self.points[0])


def search(splits: Splits, memory: Sequence[float]) -> Frontier:
    """Look for the frontier: starts that follow the structure of the graph, then changes of one op and of two.

    Nothing here knows of a budget, so that what is found for one graph is the same for all budgets.
    """
    frontier = Frontier(splits)
    for base in splits.bases:
        frontier.take(Ops(), base)
    for ops in starts(splits, memory):
        if frontier.goes_on:
            frontier.take(ops, splits.bases[-1])
    improve(frontier)
    return frontier


def starts(splits: Splits, memory: Sequence[float]) -> Iterator[Ops]:
    """Yield sets of ops that may be recomputed: all, those of knapsacks, prefixes of rankings, all but each n-th."""
    every = splits.allowed
    yield every
    runtime = [splits.joint.runtime[op] for op in splits.ops]
    for step in range(KNAPSACKS + 1):
        yield Ops(dp_knapsack(list(memory), runtime, step / KNAPSACKS)[2])
    order = sorted(every, key=lambda choice: splits.ops[choice])
    by_byte = sorted(order, key=lambda choice: runtime[choice] / max(memory[choice], NO_BYTES))
    for rank in (by_byte, sorted(order, key=lambda choice: (runtime[choice], -memory[choice]))):
        for count in _counts(len(rank)):
            yield Ops(rank[:count])
    for stride in STRIDES:
        for offset in range(min(stride, OFFSETS, len(order))):
            yield every - Ops(order[offset::stride])


def _counts(length: int) -> list[int]:
    """Up to `PREFIXES - 1` lengths of prefixes."""
    return [part * length // min(length, PREFIXES) for part in range(1, min(length, PREFIXES))]


def improve(frontier: Frontier) -> None:
    """Change each point by one op, those held at its peak first, or by its base, until nothing is gained."""
    done: set[tuple[Point, Ops, int]] = set()
    while frontier.goes_on:
        ranked = [
            (rank, start, move) for start in frontier.points for rank, move in enumerate(_moves(frontier.splits, start))
        ]
        todo = [(rank, start, move) for rank, start, move in ranked if (start, *move) not in done]
        if not todo:
            return
        for _, point, (ops, base) in sorted(todo, key=lambda entry: entry[:2]):
            done.add((point, ops, base))
            if frontier.goes_on and point in frontier.points:
                frontier.take(ops, base)


def _moves(splits: Splits, point: Point) -> list[tuple[Ops, int]]:
    split = splits.of(point.base, point.ops)
    held = split.held if split else frozenset()
    changed = sorted(splits.allowed, key=lambda op: (splits.ops[op] not in held, op))
    moves = [(Ops(point.ops), base) for base in splits.bases if base != point.base]
    return moves + [(Ops(point.ops) ^ {op}, point.base) for op in changed]
