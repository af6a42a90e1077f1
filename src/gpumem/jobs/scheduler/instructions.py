"""What an executor walks: a plan carried out on a job's trace, op by op, with a delay for every copy.

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

    `trace` is the rewritten one; its `of` count in the job's own trace. `budget`: device bytes that it takes, the load
    in issue order or, where it is placed, the height. By op: `role`, `ns`, `op` (in
    the job's own trace, -1 for a copy), `delay` (ns), `part` (the device part that a copy reads or writes, else -1),
    `makes` (parts that are reserved when it is issued), `after` (copies that must have ended, the last of each that
    was issued before), `settles` (a copy-out that the end of the iteration waits for). `ends[i]`: parts that nobody
    needs once the walk is at op `i`; `ends[n]` at its end. By part: `buffer` (in the job's own trace), `size`.
    `device` (buffer -> part) and `host` (buffers): where the values lie that cross the boundary.
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
    settles: tuple[bool, ...]
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
    """Carry out a plan and say op by op what is to be done.

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
    mine = replace(  # so that `of` counts in this trace, whatever file it was read from
        trace,
        buffers=replace(trace.buffers, of=np.arange(len(trace.buffers))),
        ops=replace(trace.ops, of=np.arange(trace.n)),
    )
    done = plan.carried(mine)
    new = done.trace
    b, ops, n = new.buffers, new.ops, new.n
    over = np.flatnonzero(new.crossing)
    placement = place(new) if place is not None else None
    copies = np.flatnonzero(ops.copies)
    part = np.full(n, -1, np.int64)
    for i in copies.tolist():
        part[i] = (ops.reads if ops.role[i] == COPY_OUT else ops.writes)[i][0]
    passing = np.flatnonzero(~b.host & ~new.eternal)
    return Instructions(
        plan,
        tuple(delays),
        new,
        placement,
        placement.height if placement is not None else new.peak_live_bytes,
        tuple(ops.role.tolist()),
        tuple(machine.durations(new).tolist()),
        tuple(ops.of.tolist()),
        _delays(plan, done, delays),
        tuple(part.tolist()),
        _rows(b.start[passing], passing, n),
        _after(new, copies.tolist(), placement),
        tuple(bool(ops.role[i] == COPY_OUT and i + 1 + (b.end[p] - 1 - i) % n <= n) for i, p in enumerate(part)),
        _rows((b.end[passing] - 1) % n + 1, passing, n + 1),
        tuple(b.of.tolist()),
        tuple(b.size.tolist()),
        {int(b.of[p]): p for p in over.tolist() if not b.host[p]},
        frozenset(int(b.of[p]) for p in over.tolist() if b.host[p] and not trace.buffers.host[b.of[p]]),
    )


def _rows(row: I64, values: I64, count: int) -> Rows:
    """Group `values` by `row`."""
    return tuple(map(tuple, Csr.grouped(row, values, count).tolist()))


def _delays(plan: Plan, done: Carried, delays: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The delay of each op of the rewritten trace: a decision's copies get its delays."""
    if delays and len(delays) != len(plan.decisions):
        raise ValueError(f"delays: {len(delays)} pairs for {len(plan.decisions)} decisions")
    found = [0] * done.trace.n
    for d, (out, into), leaves, back in zip(plan.decisions, delays, done.out.tolist(), done.back.tolist()):
        if min(out, into) < 0:
            raise ValueError(f"{d}: a delay of {min(out, into)} ns is below 0")
        if isinstance(d, Swap):
            found[back] = int(into)
            if leaves >= 0:
                found[leaves] = int(out)
    return tuple(found)


def _after(trace: Trace, copies: Sequence[int], placement: Placement | None) -> Rows:
    """The copies that each op must find ended: of the last n ops those that touch the same bytes, one of them writing.

    `hazards` would not do: what it leaves out follows from the order of each stream, and here copies go by due time.
    """
    after: list[list[int]] = [[] for _ in range(trace.n)]
    touched = trace.accesses()
    for i in copies:
        for x, fills in ((int(trace.ops.reads[i][0]), False), (int(trace.ops.writes[i][0]), True)):
            for y in _sharing(trace, x, placement):
                row = slice(touched.op.ptr[y], touched.op.ptr[y + 1])
                for j, write in zip(touched.op.idx[row].tolist(), touched.writes[row].tolist()):
                    if (fills or write) and (not after[j] or after[j][-1] != i):
                        after[j].append(i)
    return tuple(map(tuple, after))


def _sharing(trace: Trace, x: int, placement: Placement | None) -> list[int]:
    """Buffer `x`, and the device buffers that share bytes with it where they are placed."""
    b = trace.buffers
    if placement is None or b.host[x] or not b.size[x]:
        return [x]
    low = placement.offset
    over: list[int] = np.flatnonzero(
        ~b.host & (b.size > 0) & (low < low[x] + b.size[x]) & (low[x] < low + b.size)
    ).tolist()
    return over
