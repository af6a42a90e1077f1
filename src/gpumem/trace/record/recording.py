"""What was recorded of a program, and one iteration cut out of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import strict, strict_fields
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.trace.buffers import Buffers, Shape
from gpumem.trace.columns import I64, Bool, first
from gpumem.trace.csr import Csr
from gpumem.trace.ops import Ops
from gpumem.trace.trace import Trace

NEVER = 2**62  # `free` of a block that outlives the recording
BEFORE = -1  # `alloc` of a block that was there before


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recording(Shown):
    """What was recorded: several iterations of ops, and blocks that each live from op `alloc` to op `free`.

    Parameters
    ----------
    size : int64[B]
        Bytes.
    alloc, free : int64[B]
        First and last op during which the block occupies memory, both inclusive; `BEFORE` (-1) and
        `NEVER` (2**62) where the recording does not say.
    kind, name : tuple of str
    ops : Ops
        All recorded ops; reads and writes count in blocks.
    shape, dtype : tuple, optional
        As columns of `Buffers`.
    """

    size: I64
    alloc: I64
    free: I64
    kind: tuple[str, ...]
    name: tuple[str, ...]
    ops: Ops
    shape: tuple[Shape | None, ...] | None = None
    dtype: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for verb, rows in (("reads", self.ops.reads), ("writes", self.ops.writes)):
            op, block = rows.rows(), rows.idx
            if (column := first((block < 0) | (block >= len(self.size)))) >= 0:
                raise ValueError(
                    f"op {op[column]}: {verb} buffer {block[column]}, but there are {len(self.size)} buffers"
                )
            begin, end = self.alloc[block], self.free[block]
            if (column := first((op < begin) | (op > end))) >= 0:
                when = "before it is allocated" if op[column] < begin[column] else "after it is freed"
                lives = f"[{begin[column]}, {end[column]}]"
                raise ValueError(f"op {op[column]}: {verb} buffer {block[column]} {when}: it lives during ops {lives}")

    def _facts(self) -> Facts:
        return {"ops": len(self.ops), "blocks": len(self.size), "bytes of all": human(int(self.size.sum()))}

    @strict
    def part(self, lo: int, hi: int) -> Recording:
        """Return ops `[lo, hi)` alone, with the blocks that live during them, renumbered.

        Blocks made before are there from the start (`BEFORE`); those freed after it, never.

        Raises
        ------
        ValueError
            No such ops.

        Notes
        -----
        O(B + accesses).
        """
        self._check_ops("part", lo, hi)
        keep = np.flatnonzero((self.alloc < hi) & (self.free >= lo))
        new_id = np.full(len(self.size), -1, np.int64)
        new_id[keep] = np.arange(len(keep))
        alloc, free = self.alloc[keep] - lo, self.free[keep]
        return Recording(
            self.size[keep],
            np.where(alloc < 0, BEFORE, alloc),
            np.where(free >= hi, NEVER, free - lo),
            kind=tuple(self.kind[buffer] for buffer in keep),
            name=tuple(self.name[buffer] for buffer in keep),
            ops=self._taken(lo, hi, new_id),
            shape=None if self.shape is None else tuple(self.shape[buffer] for buffer in keep),
            dtype=None if self.dtype is None else tuple(self.dtype[buffer] for buffer in keep),
        )

    @strict
    def iteration(self, lo: int, hi: int, *, name: str = "") -> Trace:
        """Cut ops `[lo, hi)` out as one iteration that repeats.

        Blocks alive throughout are persistent. A block made in the previous iteration and freed in this
        one is taken to be the block made at the same relative op with the same size in this one: the two
        become one arc across the boundary. Where it was freed right before this one, and the recording ends
        before the free of its successor, that one ends with the iteration.

        Raises
        ------
        ValueError
            No such ops, or the cut is not a steady iteration: a block freed in it was not made in the
            iteration before (or its successor is freed at another op of the next one), a block made in it
            is never freed, or lives longer than an iteration.

        Notes
        -----
        O(B log B + accesses). `of` of buffers and ops counts in the recording.
        """
        self._check_ops("iteration", lo, hi)
        n = hi - lo
        before, inside = self.alloc < lo, (self.alloc >= lo) & (self.alloc < hi)
        through = before & (self.free >= hi)
        start = np.where(through, 0, self.alloc - lo)
        end = np.where(through, n, np.minimum(self.free, NEVER - 1) + 1 - lo)
        twin = self._interchangeable(lo, n, before & (self.free >= lo - 1) & ~through, inside & (self.free >= hi - 1))
        for old, new in twin.items():
            end[new] = n + self.free[old] + 1 - lo
        keep = np.flatnonzero(through | inside)
        if (entry := first(end[keep] - start[keep] > n)) >= 0:
            buffer = keep[entry]
            fate = "is never freed" if end[buffer] == NEVER - lo else f"lives {end[buffer] - start[buffer]} ops"
            raise ValueError(
                f"buffer {buffer}: made at op {self.alloc[buffer]}, {fate}; in a steady iteration of {n} ops "
                f"([{lo}, {hi})) it would live {n} at most"
            )
        buffers = Buffers.make(
            self.size[keep],
            start[keep],
            end[keep],
            persistent=through[keep],
            kind=[self.kind[buffer] for buffer in keep],
            of=keep,
            name=[self.name[buffer] for buffer in keep],
            shape=None if self.shape is None else [self.shape[buffer] for buffer in keep],
            dtype=None if self.dtype is None else [self.dtype[buffer] for buffer in keep],
        )
        return Trace(buffers, self._ops(lo, hi, keep, twin), name=name)

    def _interchangeable(self, lo: int, n: int, old: Bool, new: Bool) -> dict[int, int]:
        """Match each block that ends in this iteration, or right before it, to its successor."""
        made: dict[tuple[int, int], list[int]] = {}
        for buffer in np.flatnonzero(new).tolist():
            made.setdefault((int(self.alloc[buffer]), int(self.size[buffer])), []).append(buffer)
        twin = {}
        for buffer in np.flatnonzero(old).tolist():
            at = int(self.alloc[buffer])
            partners = made.get((at + n, int(self.size[buffer])), []) if at != BEFORE else []
            fits = [entry for end in (self.free[buffer] + n, NEVER) for entry in partners if self.free[entry] == end]
            if not fits and self.free[buffer] < lo:
                continue  # gone before this iteration
            if not fits:
                origin = "made before the recording" if at == BEFORE else f"made at op {at}"
                raise ValueError(
                    f"buffer {buffer} ({self.size[buffer]} bytes), {origin}: freed at op {self.free[buffer]} "
                    f"in the iteration [{lo}, {lo + n}), which makes no buffer like it: not a steady iteration"
                )
            twin[buffer] = fits[0]
            partners.remove(fits[0])
        return twin

    def _ops(self, lo: int, hi: int, keep: I64, twin: dict[int, int]) -> Ops:
        new_id = np.full(len(self.size), -1, np.int64)
        new_id[keep] = np.arange(len(keep))
        for old, new in twin.items():
            new_id[old] = new_id[new]
        return self._taken(lo, hi, new_id)

    def _taken(self, lo: int, hi: int, new_id: I64) -> Ops:
        """Ops `[lo, hi)`, which know blocks by new numbers."""
        rows = np.arange(lo, hi)
        own = self.ops.take(rows)

        def renumbered(blocks: Csr) -> Csr:
            return Csr(blocks.ptr, new_id[blocks.idx])

        statistics = None if own.statistics is None else renumbered(own.statistics)
        return replace(own, reads=renumbered(own.reads), writes=renumbered(own.writes), statistics=statistics, of=rows)

    def _check_ops(self, what: str, lo: int, hi: int) -> None:
        if not 0 <= lo < hi <= len(self.ops):
            raise ValueError(f"{what} [{lo}, {hi}): the recording has ops [0, {len(self.ops)})")
