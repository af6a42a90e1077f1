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
        b = trace.buffers
        shared = host  # host buffers that share nothing cannot wait for each other's bytes
        host = _one_after_another(trace, placement.alignment) if host is None else host
        for what, given in (("placement", placement), ("host", host)):
            if len(given.offset) != len(b):
                raise ValueError(f"{what}: {len(given.offset)} offsets, but the trace has {len(b)} buffers")
        offset = np.where(b.host, host.offset, placement.offset)
        height = np.where(b.host, host.height, placement.height)
        for i in np.flatnonzero((offset < 0) | (offset + b.size > height)).tolist():
            where, made = ("host", "trace.host_side()") if b.host[i] else ("placement", "the trace")
            told = f"{where}: buffer {i}: bytes {offset[i]}..{offset[i] + b.size[i]} lie outside 0..{height[i]}"
            raise ValueError(f"{told}; a placement of {made} would do")
        columns = (b.of.tolist(), b.host.tolist(), offset.tolist(), b.size.tolist())
        blocks = tuple(Block(i, *row) for i, row in enumerate(zip(*columns)))
        return cls(trace, blocks, placement.height, host.height, hazards(trace, placement, shared))


def _one_after_another(trace: Trace, alignment: int) -> Placement:
    b = trace.buffers
    room = np.where(b.host, -(-b.size // alignment) * alignment, 0)
    return Placement(np.where(b.host, np.cumsum(room) - room, NOWHERE), int(room.sum()), alignment)
