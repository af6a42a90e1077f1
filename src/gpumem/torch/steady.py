"""Whether the iterations of a step are alike, and what goes from one into the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem.torch.step.workload import WorkloadError
from gpumem.trace import I64, Csr, first
from gpumem.trace.record.recording import Recording

ALIKE = (
    "a step must do the same each time; record more warm-up if it settles, or iterations=1 for the last one as it is"
)


def check_alike(made: Recording, bounds: list[tuple[int, int]], phases: list[str]) -> None:
    """Raise unless the last two iterations run the same ops on operands of the same sizes."""
    (lo, hi), (start, end) = bounds[-2:]
    ops, names = made.ops, made.ops.name
    n = min(hi - lo, end - start)
    differ = np.array([names[lo + k] != names[start + k] for k in range(n)], np.bool_)
    for rows in (ops.reads, ops.writes):
        differ |= _sizes(made, rows, lo, n) != _sizes(made, rows, start, n)
    k = first(differ)
    if k < 0 and hi - lo == end - start:
        return
    which = len(bounds) - 2
    if k < 0:
        what = f"{hi - lo} and {end - start} ops"
    else:
        a, b = (f"{names[i]} ({phases[i]})" for i in (lo + k, start + k))
        what = f"op {k} is {a} and {b}" if a != b else f"op {k}, {a}, has operands of other sizes"
    raise WorkloadError(f"iterations {which} and {which + 1} differ: {what}; {ALIKE}")


def _sizes(made: Recording, rows: Csr, lo: int, n: int) -> I64:
    """One number for the operands' bytes of each op, in their order."""
    mine = rows.take(np.arange(lo, lo + n))
    place = np.arange(len(mine.idx)) - np.repeat(mine.ptr[:-1], np.diff(mine.ptr))
    found = np.zeros(n, np.int64)
    np.add.at(found, mine.rows(), (made.size[mine.idx] + 1) * (2 * place + 1))
    return found


def carried(alloc: I64, free: I64, lo: int, hi: int) -> I64:
    """Blocks that die in `[lo, hi)` and live longer than an iteration, as a state that each step replaces."""
    return np.flatnonzero((alloc < lo) & (alloc >= 0) & (free >= lo) & (free < hi) & (free - alloc >= hi - lo))


def split(made: Recording, blocks: I64, lo: int) -> Recording:
    """Let some blocks end before op `lo`, and others, as large, be there in their stead from it on."""
    count, old = len(made.size), np.arange(len(made.size))
    new = old.copy()
    new[blocks] = count + np.arange(len(blocks))

    def from_then(rows: Csr) -> Csr:
        return Csr(rows.ptr, np.where(rows.rows() >= lo, new[rows.idx], rows.idx))

    ops = made.ops
    pick = [*range(count), *blocks.tolist()]
    free = made.free.copy()
    free[blocks] = lo - 1
    return replace(
        made,
        size=made.size[pick],
        alloc=np.append(made.alloc, np.full(len(blocks), lo)),
        free=np.append(free, made.free[blocks]),
        kind=tuple(made.kind[j] for j in pick),
        name=tuple(made.name[j] for j in pick),
        ops=replace(ops, reads=from_then(ops.reads), writes=from_then(ops.writes)),
        shape=None if made.shape is None else tuple(made.shape[j] for j in pick),
        dtype=None if made.dtype is None else tuple(made.dtype[j] for j in pick),
    )
