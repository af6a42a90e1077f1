"""Unified memory instead of slabs: every recorded buffer has bytes of its own, and a plan's copies are prefetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuda.bindings import driver as api
from cuda.core import Buffer
from numpy.typing import DTypeLike

from benchmarks.gpu.buffers import done
from gpumem.execute.backend import Bytes, Call
from gpumem.execute.cuda import Cuda
from gpumem.execute.layout import Block, Layout
from gpumem.trace import UNKNOWN

GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL: any stream may touch it


class Unified(Cuda):
    """Runs a rewritten trace; its pieces of a buffer, on the device and on the host, are all the same bytes.

    What is prefetched moves, so the host keeps no copy: where a plan swaps a clean value out for the second time, no
    copy goes out, and the value stays on the device until the driver wants the room.
    """

    def open(self, layout: Layout) -> None:
        """Take memory for each recorded buffer, and for each workspace."""
        super().open(replace(layout, device=0, host=0))
        self.slabs = (Buffer.from_handle(0, 0),) * 2  # so a block's offset is its address
        sizes: dict[Any, int] = {}
        for block in layout.blocks:
            sizes[_key(block)] = max(sizes.get(_key(block), 1), block.size)
        self.at: dict[Any, int] = {}
        for key, size in sizes.items():
            self.at[key] = int(done(*api.cuMemAllocManaged(size, GLOBAL)))
            self._held.callback(api.cuMemFree, self.at[key])

    def _there(self, block: Block) -> Block:
        return replace(block, host=False, offset=self.at[_key(block)])

    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a device array."""
        return super().view(block if block.buffer == UNKNOWN else self._there(block), dtype, shape)

    def put(self, block: Block, data: Bytes) -> None:
        """Write bytes; the rest becomes zero."""
        super().put(self._there(block), data)

    def get(self, block: Block) -> Bytes:
        """Return a copy of the bytes."""
        return super().get(self._there(block))

    def copier(self, source: Block, target: Block) -> Call:
        """Return a prefetch to where the target is."""
        if not source.size:
            return lambda stream: None
        place = api.CUmemLocation()
        kinds = api.CUmemLocationType
        place.type = kinds.CU_MEM_LOCATION_TYPE_HOST if target.host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = 0 if target.host else self.device.device_id
        prefetch = getattr(api, "cuMemPrefetchAsync_v2", None) or api.cuMemPrefetchAsync  # CUDA 12 has both
        address, size = self.at[_key(source)], source.size
        return lambda stream: done(*prefetch(address, size, place, 0, api.CUstream(int(stream.handle))))


def _key(block: Block) -> Any:
    """Whose bytes they are: the recorded buffer's, or its own."""
    return ("own", block.buffer) if block.of == UNKNOWN else block.of
