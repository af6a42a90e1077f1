"""An address for every device buffer: what offline planners return and online allocators yield."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.columns import I64
from gpumem.trace import Trace

NOWHERE = -1  # the offset of a host buffer


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """An offset for each buffer and the height of the pool.

    Parameters
    ----------
    offset : int64[B]
        First byte of each device buffer; -1 for host buffers.
    height : int
        Bytes of the pool (the footprint).
    alignment : int
        Bytes that every offset is a multiple of.
    bound : int
        Bytes that no placement of the trace goes below, as far as the planner knows; 0 where it says nothing.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 2], [0, 2], [2, 4])
    >>> Placement.at(trace, [0, 0], alignment=1).ratio(trace)
    1.0
    """

    offset: I64
    height: int
    alignment: int = 1
    bound: int = 0

    @property
    def optimal(self) -> bool:
        """Whether the planner proved that no placement is lower."""
        return self.height <= self.bound

    @classmethod
    def at(cls, trace: Trace, offset: list[int] | I64, *, alignment: int = 1) -> Placement:
        """Make a placement from offsets alone; the height is the highest byte in use."""
        at = np.asarray(offset, np.int64)
        device = ~trace.buffers.host
        return cls(at, int((at + trace.buffers.size)[device].max(initial=0)), alignment)

    def ratio(self, trace: Trace) -> float:
        """Return the competitive ratio: footprint over peak load (1.0 where the load is 0)."""
        peak = trace.peak_load
        return self.height / peak if peak else 1.0
