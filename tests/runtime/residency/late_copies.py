"""A device whose copies land late, and what must hold of the books of a residency under a memory limit at any moment.

No torch. `Late` copies out and back on two queues: bytes move when somebody settles, or `progress` lets them. Memory
that was given back is poisoned, and the next one of that size gets it: a copy that lands too late ruins somebody
else's bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gpumem.runtime.residency.environment import Movable, Where
from gpumem.runtime.residency.limited_memory import LimitedMemory

DEVICE, HOST, RECIPE, NOTHING = Where
POISON, GARBAGE = 0xA5, 0x5A


class Slab:
    """The host's copy of something; `live` until it is dropped."""

    def __init__(self, size: int) -> None:
        self.data, self.live = bytearray([GARBAGE] * size), True


class Faults:
    """Raises what it is told, once, when what it is told is called for the n-th time from then on."""

    def __init__(self) -> None:
        self.method, self.left, self.error = "", 0, Exception()
        self.raised = ""

    def arm(self, method: str, n: int, error: Exception) -> None:
        """Let the n-th call from now on fail."""
        self.method, self.left, self.error, self.raised = method, n, error, ""

    def call(self, method: str) -> None:
        """A method is called: fail if it is its turn."""
        if method == self.method and self.left:
            self.left -= 1
            if not self.left:
                self.raised = method
                raise self.error


class Late:
    """An engine and its pointers. A storage is whatever has a `memory`, bytes or None, and a `size`."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.queues: dict[str, deque[tuple[Slab, Any, Any]]] = {"out": deque(), "back": deque()}
        self.slabs: list[Slab] = []  # those that live
        self.freed: dict[int, list[bytearray]] = {}

    def out(self, storage: Any) -> Slab:
        """Begin to copy what the memory has when the copy runs."""
        self.faults.call("out")
        slab = Slab(storage.size)
        self.queues["out"].append((slab, slab.data, storage.memory))
        self.slabs.append(slab)
        return slab

    def back(self, storage: Any, copy: Slab) -> None:
        """Begin to copy into the memory that the storage has now."""
        self.faults.call("back")
        assert copy.live and not self.under_way(copy), "a copy is read before it is there"
        storage.memory[:] = bytes([GARBAGE]) * storage.size
        self.queues["back"].append((copy, storage.memory, copy.data))

    def wait_for_copy(self, copy: Slab) -> None:
        """Copies land, up to the last of this one."""
        self.faults.call("settle")
        for queue in self.queues.values():
            while any(slab is copy for slab, _, _ in queue):
                self.progress(queue)

    @staticmethod
    def progress(queue: deque[tuple[Slab, Any, Any]]) -> None:
        """The next copy of a queue lands."""
        _, target, source = queue.popleft()
        target[:] = source

    def drop(self, copy: Slab) -> None:
        """Nobody may use it any more; a copy under way lands all the same."""
        assert copy.live, "dropped twice"
        copy.live = False
        self.slabs.remove(copy)

    def under_way(self, copy: Slab) -> bool:
        """Whether anything of it has not landed."""
        return any(slab is copy for queue in self.queues.values() for slab, _, _ in queue)

    def fill(self, storage: Any, size: int) -> None:
        """Give memory that somebody else had before, if there is any."""
        self.faults.call("fill")
        assert storage.memory is None, "it has memory"
        used = self.freed.get(size)
        storage.memory = used.pop() if used else bytearray([POISON] * size)

    def empty(self, storage: Any) -> None:
        """Poison the memory, and take it."""
        self.faults.call("empty")
        storage.memory[:] = bytes([POISON]) * storage.size
        self.freed.setdefault(storage.size, []).append(storage.memory)
        storage.memory = None


@contextmanager
def raising(*errors: type[BaseException]) -> Iterator[list[BaseException]]:
    """Let any of these errors pass, and tell of it."""
    found: list[BaseException] = []
    try:
        yield found
    except errors as error:
        found.append(error)


def check(memory: LimitedMemory[Any], cells: Iterable[Movable], beside: int, engine: Late) -> None:
    """All that must hold of a memory at any moment, computed anew from the cells that are on its books."""
    known = [*cells]
    here = [cell for cell in known if cell.where is DEVICE]
    assert memory.held == sum(cell.size for cell in here) + beside
    assert memory.pinned == sum(cell.size for cell in here if cell.pinned)
    assert memory.alive == sum(cell.size for cell in known)
    assert {*memory.on_device} == {*here} and len(memory.on_device) == len(here)
    assert memory.held <= max(memory.limit, beside) and memory.held <= memory.peak
    for cell in known:
        legal(cell)
        copy = cell.copy
        if copy is not None:
            assert copy.data.live
            assert copy.in_flight or not engine.under_way(copy.data)
    assert {id(slab) for slab in engine.slabs} == {id(cell.copy.data) for cell in known if cell.copy is not None}


def legal(cell: Any) -> None:
    """One state of the picture's (`Where`)."""
    assert not cell.pinned or cell.where is DEVICE
    if cell.where is DEVICE:
        assert cell.recipe is None
    elif cell.where is HOST:
        assert cell.copy is not None and cell.recipe is None and not cell.copy.in_flight
    elif cell.where is RECIPE:
        assert cell.recipe is not None and cell.copy is None
    else:
        assert not cell.version and cell.copy is None and cell.recipe is None
    if cell.storage is not None:
        assert (cell.storage.memory is not None) == (cell.where is DEVICE)
