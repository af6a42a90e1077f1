"""What an executor walks: a plan applied to a job's trace, op by op, with a delay for every copy.

Each decision of a plan inserts copies; TENSILE's scheduler says how long after the end of the op before it each of
them starts (the *delta time* of section 3.2)::

    compute  ---[ out ]-------------------[ prefetch - 1 ]------------[ before ]---
                       |-delay-[ copy out ]               |-delay-[ copy in ]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Carried, Plan, Swap
from gpumem.trace import COPY_OUT, I64, Csr, Trace
from gpumem.trace.placement import Placement

Place = Callable[[Trace], Placement]
Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Instructions(Shown):
    """One iteration under a plan, `n` ops in issue order.

    `trace` is the rewritten one; its `of` count in the job's own trace. `budget`: device bytes that it takes, the peak
    live bytes in issue order or, where it is placed, the height. By op: `role`, `ns`, `op` (in the job's own trace, -1
    for a copy), `delay` (ns), `part` (the device part that a copy reads or writes, else -1), `makes` (parts that are
    reserved when it is issued), `after` (copies that must have ended, the last of each that was issued before),
    `awaited_at_end` (a copy-out that the end of the iteration waits for). `ends[i]`: parts whose lifetime has ended
    once the walk is at op `i`; `ends[n]` at its end. By part: `buffer` (in the job's own trace), `size`. `device`
    (buffer -> part) and `host` (buffers): where the values lie that cross the boundary.
    """

    plan: Plan
    delays: tuple[tuple[int, int], ...]
    trace: Trace
    placement: Placement | None
    budget: int
    role: tuple[int, ...]
    ns: tuple[int, ...]
    op: tuple[int, ...]
    delay: tuple[int, ...]
    part: tuple[int, ...]
    makes: Rows
    after: Rows
    awaited_at_end: tuple[bool, ...]
    ends: Rows
    buffer: tuple[int, ...]
    size: tuple[int, ...]
    device: dict[int, int]
    host: frozenset[int]


@strict
def instructions(
    trace: Trace,
    plan: Plan,
    machine: Machine,
    delays: Sequence[tuple[int, int]] = (),
    place: Place | None = None,
) -> Instructions:
    """Apply a plan and list op by op what is to be done.

    Parameters
    ----------
    trace : Trace
        The job's own.
    plan : Plan
        Of any planner.
    machine : Machine
        Gives the ns of kernels and copies.
    delays : sequence of (int, int)
        Of each decision, the ns that its copy-out and its copy-in wait; zeros where left out.
    place : callable, optional
        A pool planner: with it, bytes at one address are waited for as well.

    Returns
    -------
    Instructions

    Raises
    ------
    ValueError
        A plan that does not fit the trace, a delay below 0, delays for another number of decisions.

    Notes
    -----
    O((n + d) log (n + d)) for d decisions, and the accesses of swapped buffers; with `place`, what that takes and
    O(d B) for B buffers.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.swap.plan import Swap
    >>> ops = Ops.make([[], [], [0]], [[0], [1], []], duration=[5, 5, 5])
    >>> trace = Trace(Buffers.make([8, 9], [0, 1], [3, 2]), ops)
    >>> plan = Plan((Swap(0, 0, 2, 1, 2),), 3)
    >>> todo = instructions(trace, plan, Machine.named("h200"), [(7, 1)])
    >>> todo.op, todo.delay, todo.after, todo.budget
    ((0, -1, 1, -1, 2), (0, 7, 0, 1, 0), ((1,), (1, 3), (), (1, 3), (3,)), 9)
    """
    renumbered = replace(  # so that `of` counts in this trace, whatever file it was read from
        trace,
        buffers=replace(trace.buffers, of=np.arange(len(trace.buffers))),
        ops=replace(trace.ops, of=np.arange(trace.n)),
    )
    carried = plan.carried(renumbered)
    rewritten = carried.trace
    buffers, ops, count = rewritten.buffers, rewritten.ops, rewritten.n
    crossing = np.flatnonzero(rewritten.crossing)
    placement = place(rewritten) if place is not None else None
    copies = np.flatnonzero(ops.copies)
    part_of = np.full(count, -1, np.int64)
    for op in copies.tolist():
        part_of[op] = (ops.reads if ops.role[op] == COPY_OUT else ops.writes)[op][0]
    passing = np.flatnonzero(~buffers.host & ~rewritten.eternal)
    crossing_device = [part for part in crossing.tolist() if not buffers.host[part]]
    crossing_host = [part for part in crossing.tolist() if buffers.host[part]]
    return Instructions(
        plan,
        tuple(delays),
        rewritten,
        placement,
        budget=placement.height if placement is not None else rewritten.peak_live_bytes,
        role=tuple(ops.role.tolist()),
        ns=tuple(machine.durations(rewritten).tolist()),
        op=tuple(ops.of.tolist()),
        delay=_delays(plan, carried, delays),
        part=tuple(part_of.tolist()),
        makes=_rows(buffers.start[passing], passing, count),
        after=_after(rewritten, copies.tolist(), placement),
        awaited_at_end=tuple(
            bool(ops.role[op] == COPY_OUT and op + 1 + (buffers.end[part] - 1 - op) % count <= count)
            for op, part in enumerate(part_of)
        ),
        ends=_rows((buffers.end[passing] - 1) % count + 1, passing, count + 1),
        buffer=tuple(buffers.of.tolist()),
        size=tuple(buffers.size.tolist()),
        device={int(buffers.of[part]): part for part in crossing_device},
        host=frozenset(int(buffers.of[part]) for part in crossing_host if not trace.buffers.host[buffers.of[part]]),
    )


def _rows(row: I64, values: I64, count: int) -> Rows:
    """Group `values` by `row`."""
    return tuple(map(tuple, Csr.grouped(row, values, count).tolist()))


def _delays(plan: Plan, carried: Carried, delays: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The delay of each op of the rewritten trace: a decision's copies get its delays."""
    if delays and len(delays) != len(plan.decisions):
        raise ValueError(f"delays: {len(delays)} pairs for {len(plan.decisions)} decisions")
    delay = [0] * carried.trace.n
    for decision, (out, into), copy_out, copy_in in zip(
        plan.decisions, delays, carried.out.tolist(), carried.back.tolist()
    ):
        if min(out, into) < 0:
            raise ValueError(f"{decision}: a delay of {min(out, into)} ns is below 0")
        if isinstance(decision, Swap):
            delay[copy_in] = int(into)
            if copy_out >= 0:
                delay[copy_out] = int(out)
    return tuple(delay)


def _after(trace: Trace, copies: Sequence[int], placement: Placement | None) -> Rows:
    """The copies that each op must find ended: of the last n ops those that touch the same bytes, one of them writing.

    `hazards` would not suffice: the edges that it omits follow from the order of each stream, and here copies go by due
    time.
    """
    after: list[list[int]] = [[] for _ in range(trace.n)]
    touched = trace.accesses()
    for copy in copies:
        for buffer, is_filled in ((int(trace.ops.reads[copy][0]), False), (int(trace.ops.writes[copy][0]), True)):
            for sharer in _sharing(trace, buffer, placement):
                rows = slice(touched.op.ptr[sharer], touched.op.ptr[sharer + 1])
                for op, writes in zip(touched.op.idx[rows].tolist(), touched.writes[rows].tolist()):
                    if (is_filled or writes) and (not after[op] or after[op][-1] != copy):
                        after[op].append(copy)
    return tuple(map(tuple, after))


def _sharing(trace: Trace, buffer: int, placement: Placement | None) -> list[int]:
    """Buffer `buffer`, and the device buffers that share bytes with it where they are placed."""
    buffers = trace.buffers
    if placement is None or buffers.host[buffer] or not buffers.size[buffer]:
        return [buffer]
    offset = placement.offset
    sharing: list[int] = np.flatnonzero(
        ~buffers.host
        & (buffers.size > 0)
        & (offset < offset[buffer] + buffers.size[buffer])
        & (offset[buffer] < offset + buffers.size)
    ).tolist()
    return sharing
