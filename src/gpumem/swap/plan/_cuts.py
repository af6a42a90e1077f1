"""Where a plan cuts buffers, and where in issue order its copies and recomputations go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.columns import COPY_IN, COPY_OUT, I64, RECOMPUTE
from gpumem.swap.gaps import gaps, needs_copy_out
from gpumem.swap.plan.decisions import Decision, Recompute, Swap
from gpumem.trace import Trace


@dataclass(slots=True)
class Cut:
    """A gap that leaves the device without the buffer; new indices and ids are filled in on the way."""

    decision: Swap | Recompute
    dirty: bool  # the host does not hold this value yet
    out: int = -1  # new index of the copy-out, if there is one
    back: int = -1  # new index of the copy-in or of the recomputation
    host: int = -1  # new id of the host buffer

    @property
    def release(self) -> int:
        """The first op after the gap began that need not hold the device buffer."""
        d = self.decision
        return d.release if isinstance(d, Swap) else d.after + 1

    @property
    def return_before(self) -> int:
        """The op right before which the buffer comes back."""
        d = self.decision
        return d.prefetch if isinstance(d, Swap) else d.at


def find_cuts(trace: Trace, decisions: Sequence[Decision]) -> dict[int, list[Cut]]:
    """Return the cuts of each buffer in the order of its lifetime; every decision is checked here."""
    chosen = [d for d in decisions if isinstance(d, Swap | Recompute)]
    mine = gaps(trace)
    mine = mine.where(np.isin(mine.buffer, [d.buffer for d in chosen]))
    row = mine.rows(trace.n)
    by_row: dict[int, Swap | Recompute] = {}
    for d in chosen:
        _check(d, trace)
        k = row.get((d.buffer, d.after), -1)
        if k < 0 or mine.before[k] != d.before:
            instead = f"; the next access is at {mine.before[k]}" if k >= 0 else ""
            raise ValueError(f"{d}: ops {d.after} and {d.before} are not consecutive accesses of it{instead}")
        if k in by_row:
            raise ValueError(f"{d}: this gap is already taken by {by_row[k]}")
        by_row[k] = d
    swapped = np.array(sorted(k for k, d in by_row.items() if isinstance(d, Swap)), np.int64)
    dirty = dict(zip(swapped.tolist(), needs_copy_out(mine.where(swapped)).tolist()))
    cuts: dict[int, list[Cut]] = {}
    for k in sorted(by_row):
        cuts.setdefault(by_row[k].buffer, []).append(Cut(by_row[k], dirty.get(k, False)))
    return cuts


def _check(d: Swap | Recompute, trace: Trace) -> None:
    if not 0 <= d.buffer < len(trace.buffers):
        raise ValueError(f"{d}: there are {len(trace.buffers)} buffers")
    if trace.buffers.host[d.buffer]:
        raise ValueError(f"{d}: the buffer is on the host already")
    if isinstance(d, Swap):
        names, steps = "after <= out < release <= prefetch <= before", [d.after, d.out, d.release - 1, d.prefetch - 1]
    else:
        names, steps = "after < at <= before", [d.after, d.at - 1]
    steps.append(d.before - 1)
    if not (0 <= d.after < trace.n and steps == sorted(steps) and d.before <= d.after + trace.n):
        rule = f"must obey 0 <= after < {trace.n} and {names} <= after + {trace.n}"
        raise ValueError(f"{d}: {rule}{_broken(d, names.split())}")


def _broken(d: Swap | Recompute, names: list[str]) -> str:
    """Which two of the steps are not in order, where it is two."""
    for left, sign, right in zip(names[::2], names[1::2], names[2::2]):
        a, b = getattr(d, left), getattr(d, right)
        if a > b or (a == b and sign == "<"):
            return f"; {left} {a} {sign} {right} {b} does not hold"
    return ""


def issue_order(n: int, cuts: list[Cut], order: dict[Decision, int]) -> tuple[I64, list[tuple[Cut, int]], I64]:
    """Place the inserted ops, and tell each cut where they went.

    Returns
    -------
    pos : int64[n]
        New index of each old op.
    inserted : list of (cut, role)
        The new ops, in issue order.
    at : int64[len(inserted)]
        Their new indices.
    """
    items = []  # (old ops before it, copies out first, plan order, cut, role)
    for cut in cuts:
        d = cut.decision
        if isinstance(d, Swap) and cut.dirty:
            items.append((d.out % n + 1, 0, order[d], cut, COPY_OUT))
        items.append((cut.return_before % n, 1, order[d], cut, COPY_IN if isinstance(d, Swap) else RECOMPUTE))
    items.sort(key=lambda item: item[:3])
    ops_before = np.array([item[0] for item in items], np.int64)
    at = ops_before + np.arange(len(items))
    for item, index in zip(items, at.tolist()):
        if item[4] == COPY_OUT:
            item[3].out = index
        else:
            item[3].back = index
    steps = np.arange(n, dtype=np.int64)
    return steps + np.searchsorted(ops_before, steps, side="right"), [item[3:] for item in items], at
