"""An address for every device buffer: what offline planners return and online allocators yield."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumem.base.arguments import at_least, strict
from gpumem.base.display import Facts, Shown, frame
from gpumem.base.units import human
from gpumem.trace.columns import I64, MAX_BYTES, first, int_column
from gpumem.trace.trace import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

NOWHERE = -1  # the offset of a host buffer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Placement(Shown):
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

    def _facts(self) -> Facts:
        bound = {"bound": human(self.bound) + (", optimal" if self.optimal else "")} if self.bound else {}
        placed = int((self.offset != NOWHERE).sum())
        return {"buffers": placed, "height": human(self.height), "alignment": human(self.alignment), **bound}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row a buffer: `offset_bytes`, `<NA>` for host buffers; needs `gpumem[pandas]`."""
        return frame({"offset_bytes": self.offset}, index="buffer", absent=NOWHERE, integers=["offset_bytes"])

    @property
    def optimal(self) -> bool:
        """Whether the planner proved that no placement is lower."""
        return self.height <= self.bound

    @classmethod
    @strict
    def at(cls, trace: Trace, offset: Sequence[int] | I64, *, alignment: int = 1) -> Placement:
        """Make a placement from offsets alone; the height is the highest byte in use.

        Parameters
        ----------
        trace : Trace
        offset : int64[B] or sequence of int
            First byte of each buffer, one for each; -1 for host buffers.
        alignment : int
            Bytes that every offset is a multiple of.

        Raises
        ------
        ValueError
            Not one whole number for each buffer; a device buffer at a negative offset, at one that is no multiple of
            `alignment`, or whose end is 2**62 or more; a host buffer at another offset than -1; an alignment below 1.
        """
        at_least(1, alignment=alignment)
        at, device, size = int_column(offset, "offset"), ~trace.buffers.host, trace.buffers.size
        if len(at) != len(device):
            raise ValueError(f"offset: {len(at)} for {len(device)} buffers; give one for each, {NOWHERE} on the host")
        if (buffer := first(~device & (at != NOWHERE))) >= 0:
            raise ValueError(f"offset[{buffer}]: {at[buffer]}, but buffer {buffer} is on the host: {NOWHERE} would do")
        if (buffer := first(device & ((at < 0) | (at >= MAX_BYTES - size)))) >= 0:
            raise ValueError(f"offset[{buffer}]: {at[buffer]} for {size[buffer]} bytes is not within [0, 2**62)")
        if (buffer := first(device & (at % alignment != 0))) >= 0:
            raise ValueError(f"offset[{buffer}]: {at[buffer]} is no multiple of the alignment of {alignment} bytes")
        return cls(at, int((at + size)[device].max(initial=0)), alignment)

    @strict
    def check_fits(self, trace: Trace) -> None:
        """Refuse a trace that this was not made for, with a ValueError: there is one offset for each of its buffers."""
        if len(self.offset) != len(trace.buffers):
            count = len(trace.buffers)
            raise ValueError(f"placement: {len(self.offset)} offsets, but trace {trace.name!r:.60} has {count} buffers")

    @strict
    def ratio(self, trace: Trace) -> float:
        """Return the fragmentation ratio: footprint over peak live bytes (1.0 where the live bytes are 0)."""
        self.check_fits(trace)
        peak = trace.peak_live_bytes
        return self.height / peak if peak else 1.0
