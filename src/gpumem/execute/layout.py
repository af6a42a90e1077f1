"""Where every buffer of a placed trace lies, in the device's slab and in the host's, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.simulator.hazards import Hazards, hazards
from gpumem.trace import Trace
from gpumem.trace.placement import NOWHERE, Placement


@dataclass(frozen=True, slots=True)
class Block:
    """Where a buffer lies: `size` bytes from `offset` in the device's slab or in the host's.

    `of` is the buffer's id in the recorded file.
    """

    buffer: int
    of: int
    host: bool
    offset: int
    size: int

    def __str__(self) -> str:
        where = "host" if self.host else "device"
        return f"buffer {self.buffer} ({where} bytes {self.offset}..{self.offset + self.size})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Layout(Shown):
    """What a backend is opened with: the trace, a block for each buffer, the slabs' bytes, the waits."""

    trace: Trace
    blocks: tuple[Block, ...]
    device: int
    host: int
    waits: Hazards

    @classmethod
    @strict
    def of(cls, trace: Trace, placement: Placement, host: Placement | None = None) -> Layout:
        """Lay out a placed trace; without `host` each host buffer gets bytes of its own."""
        if not len(trace.ops):
            raise ValueError(f"trace {trace.name!r}: no ops, a bare instance cannot run")
        buffers = trace.buffers
        shared = host  # host buffers that share nothing cannot wait for each other's bytes
        host = _one_after_another(trace, placement.alignment) if host is None else host
        for what, given in (("placement", placement), ("host", host)):
            if len(given.offset) != len(buffers):
                raise ValueError(f"{what}: {len(given.offset)} offsets, but the trace has {len(buffers)} buffers")
        offset = np.where(buffers.host, host.offset, placement.offset)
        height = np.where(buffers.host, host.height, placement.height)
        for index in np.flatnonzero((offset < 0) | (offset + buffers.size > height)).tolist():
            where, made = ("host", "trace.host_side()") if buffers.host[index] else ("placement", "the trace")
            end = offset[index] + buffers.size[index]
            problem = f"{where}: buffer {index}: bytes {offset[index]}..{end} lie outside 0..{height[index]}"
            raise ValueError(f"{problem}; a placement of {made} would do")
        columns = (buffers.of.tolist(), buffers.host.tolist(), offset.tolist(), buffers.size.tolist())
        blocks = tuple(Block(index, *row) for index, row in enumerate(zip(*columns)))
        return cls(trace, blocks, placement.height, host.height, hazards(trace, placement, shared))


def _one_after_another(trace: Trace, alignment: int) -> Placement:
    buffers = trace.buffers
    size = np.where(buffers.host, -(-buffers.size // alignment) * alignment, 0)
    return Placement(np.where(buffers.host, np.cumsum(size) - size, NOWHERE), int(size.sum()), alignment)
