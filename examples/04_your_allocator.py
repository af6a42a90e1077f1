"""Hold an allocator of yours to its contract: random programs, a naive model, and the shortest program that breaks it.

This one puts a block right behind the last one, and at the bottom when that is free. It forgets that what lies above
the bottom may still be there. In a test of yours the call is one line: it raises.
"""

from gpumem.testing import ContractError, check_allocator


class Bump:
    """Blocks one behind the other; the bottom is used again."""

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity, self.live = capacity, {}

    def allocate(self, size: int, *, stream: int = 0) -> int:
        if size < 1:
            raise ValueError(f"size {size} is below 1")
        offset = max((start + held for start, held in self.live.items()), default=0) if 0 in self.live else 0
        if offset + size > self.capacity:
            raise MemoryError(f"no room for {size} bytes")
        self.live[offset] = size
        return offset

    def free(self, offset: int, *, stream: int = 0) -> None:
        if offset not in self.live:
            raise ValueError(f"offset {offset} is not live")
        del self.live[offset]


try:
    check_allocator(Bump, streams=1)
except ContractError as error:
    print(error)
