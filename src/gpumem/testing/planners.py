"""Hold an offline planner, `Trace -> Placement`, to what it owes, without a test framework."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random
from typing import NoReturn

import numpy as np

from gpumem import check
from gpumem.base.arguments import at_least, strict
from gpumem.base.errors import CheckError
from gpumem.testing.allocators.contract import optional
from gpumem.testing.contract_error import ContractError
from gpumem.testing.shrink import shrink
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement

PLANNER_RULES = {
    "error": "it raises nothing",
    "placement": "a `Placement`: device buffers below the height, host buffers nowhere, no byte shared at one time",
    "alignment": "offsets are multiples of `alignment`",
    "height": "the height is not below the peak live bytes",
    "unchanged": "the trace is left as it was",
    "deterministic": "the same trace gives the same placement",
}
Planner = Callable[[Trace], Placement]


@dataclass(frozen=True, slots=True)
class _Row:
    size: int
    start: int
    length: int
    host: bool


@dataclass(frozen=True, slots=True)
class _Case:
    """A trace of `n` steps in parts; `stream` of each op, empty where it has no ops."""

    n: int
    rows: tuple[_Row, ...]
    stream: tuple[int, ...]

    def trace(self) -> Trace:
        """Each buffer is written at its first step and read at its last."""
        rows, steps = list(enumerate(self.rows)), range(len(self.stream))
        ops = Ops.make(
            [[buffer for buffer, row in rows if (row.start + row.length - 1) % self.n == step] for step in steps],
            [[buffer for buffer, row in rows if row.start == step] for step in steps],
            stream=list(self.stream),
            streams=[f"s{number}" for number in range(max(self.stream, default=0) + 1)],
        )
        start, end = [row.start for row in self.rows], [row.start + row.length for row in self.rows]
        buffers = Buffers.make([row.size for row in self.rows], start, end, host=[row.host for row in self.rows])
        return Trace(buffers, ops, self.n)

    def __str__(self) -> str:
        """A line of Python that makes it."""
        trace = self.trace()
        buffers, ops = trace.buffers, trace.ops
        size, start, end, host = (
            column.tolist() for column in (buffers.size, buffers.start, buffers.end, buffers.host)
        )
        if not self.stream and not any(host):
            return f"trace = Trace.from_lifetimes({size}, {start}, {end}, n={self.n})"
        accesses = f"{ops.reads.tolist()}, {ops.writes.tolist()}"
        made = f"{accesses}, stream={list(self.stream)}" if self.stream else "[], []"
        return f"trace = Trace(Buffers.make({size}, {start}, {end}, host={host}), Ops.make({made}), {self.n})"

    def shorter(self, steps: int) -> _Case:
        """The same buffers on a smaller circle, without ops."""
        rows = (replace(row, start=min(row.start, steps - 1), length=min(row.length, steps)) for row in self.rows)
        return _Case(steps, tuple(rows), ())


@strict
def check_planner(
    planner: Planner,
    *,
    alignment: int = 1,
    seed: int = 0,
    examples: int = 200,
    max_buffers: int = 12,
    max_ops: int = 10,
    streams: int = 2,
    skip: Collection[str] = (),
) -> None:
    """Have traces placed that hurt, and hold every placement against the naive oracle.

    Parameters
    ----------
    planner : callable
        `planner(trace) -> Placement`; options go in with `functools.partial`.
    alignment : int
        Bytes that each offset must be a multiple of, whatever the placement says of itself.
    seed : int
        Of the traces.
    examples : int
        Traces to try.
    max_buffers, max_ops : int
        Size of a trace; the smallest ones have one op and no buffer.
    streams : int
        Streams of the ops. Half of the traces have no ops.
    skip : collection of str
        Rules that the planner may break: `"deterministic"`, `"unchanged"`.

    Raises
    ------
    ContractError
        The rule of `PLANNER_RULES` that was broken, and a small trace that breaks it.
    ValueError
        A number below 1, or a rule that cannot be skipped.

    Notes
    -----
    Two calls of the planner and O(max_buffers^2) an example. The traces have arcs across the boundary, buffers that
    meet end to start, equal lifetimes, buffers alive all the time, of no bytes and on the host. The failing trace
    is made small greedily.

    Examples
    --------
    >>> from gpumem import Placement, best_fit
    >>> check_planner(best_fit, alignment=256)
    >>> check_planner(lambda trace: Placement.at(trace, [0] * len(trace.buffers)))
    Traceback (most recent call last):
    gpumem.testing.contract_error.ContractError: placement: buffers 0 and 1: overlap in time and address, at byte 0
        trace = Trace.from_lifetimes([1, 1], [0, 0], [1, 1], n=1)
    """
    at_least(1, alignment=alignment, examples=examples, max_ops=max_ops, streams=streams)
    may_break = optional(skip, ("deterministic", "unchanged"))

    def error(case: _Case, rule: str | None = None) -> ContractError | None:
        try:
            _judge(planner, case, alignment, may_break)
        except ContractError as broken:
            return broken if rule in (None, broken.rule) else None
        return None

    random = Random(seed)
    for _ in range(examples):
        case = _draw(random, random.randint(1, max_ops), random.randint(0, max_buffers), streams, alignment=alignment)
        broken_rule = error(case)
        if broken_rule is not None:
            raise _smallest(case, broken_rule, error) from None


def _judge(planner: Planner, case: _Case, alignment: int, may_break: Collection[str]) -> None:
    def broken(rule: str, reason: str) -> NoReturn:
        raise ContractError(rule, reason, [str(case)])

    trace = case.trace()
    try:
        placed = planner(trace)
        repeated = planner(case.trace())
    except Exception as other:
        raise ContractError("error", f"raised {other!r}", [str(case)]) from other
    after, before = trace.buffers, case.trace().buffers
    if "unchanged" not in may_break and any(
        (getattr(after, column) != getattr(before, column)).any() for column in ("size", "start", "end", "host")
    ):
        broken("unchanged", "the buffers of the trace were changed")
    for result in (placed, repeated):
        if not isinstance(result, Placement):
            returned = f"returned {result!r:.60}, which is no Placement; Placement.at(trace, offsets) makes one"
            broken("placement", " ".join(returned.split()))
    try:
        check.placement(case.trace(), placed)
    except CheckError as wrong:
        broken("placement", str(wrong))
    for buffer in np.flatnonzero(~before.host & (placed.offset % alignment != 0))[:1].tolist():
        broken("alignment", f"buffer {buffer}: offset {placed.offset[buffer]} is not a multiple of {alignment}")
    if placed.height < (peak := _peak(case)):
        broken("height", f"the height is {placed.height}, the peak live bytes {peak}")
    if "deterministic" not in may_break and (
        placed.height != repeated.height or not np.array_equal(placed.offset, repeated.offset)
    ):
        broken("deterministic", f"offsets {placed.offset.tolist()} once, {repeated.offset.tolist()} the next time")


def _peak(case: _Case) -> int:
    """The most bytes that are held on the device at one step, step by step."""
    held = [
        sum(row.size for row in case.rows if not row.host and (step - row.start) % case.n < row.length)
        for step in range(case.n)
    ]
    return max(held)


def _draw(rng: Random, steps: int, count: int, streams: int, alignment: int) -> _Case:
    """Draw a trace: any arcs, or a staircase, or a wall of equal lifetimes, mostly with what is easily forgotten."""
    sizes = [0, 1, 2, 3, 4, 4, 7, 8, 40, alignment - 1, alignment, alignment + 1, 3 * alignment]
    kind = rng.choice(["any", "any", "stairs", "wall", "around"])
    rows = []
    for turn in range(count):
        length = {
            "any": rng.randint(1, steps),
            "stairs": min(2, steps),
            "wall": steps // 2 + 1,
            "around": rng.randint(1, steps),
        }[kind]
        start = {"any": rng.randrange(steps), "stairs": turn % steps, "wall": steps // 3, "around": steps - 1}[kind]
        if rng.random() < 0.1:
            start, length = 0, steps
        rows.append(_Row(rng.choice(sizes), start, length, rng.random() < 0.1))
    ops = rng.random() < 0.5
    return _Case(steps, tuple(rows), tuple(rng.randrange(streams) for _ in range(steps)) if ops else ())


def _smallest(
    case: _Case, smallest: ContractError, error: Callable[[_Case, str | None], ContractError | None]
) -> ContractError:
    rule = smallest.rule
    for steps in range(1, case.n + 1):
        shorter = case.shorter(steps)
        if (same := error(shorter, rule)) is not None:
            case, smallest = shorter, same
            break
    return shrink(list(case.rows), smallest, lambda rows: error(replace(case, rows=tuple(rows)), rule), _simpler)


def _simpler(row: _Row) -> list[_Row]:
    """Return the same buffer smaller, shorter, earlier, on the device."""
    simpler = [replace(row, host=False)] if row.host else []
    simpler += [replace(row, size=size) for size in sorted({0, 1, row.size // 2, row.size - 1}) if 0 <= size < row.size]
    simpler += [replace(row, length=row.length - 1)] if row.length > 1 else []
    return simpler + ([replace(row, start=row.start - 1)] if row.start else [])
