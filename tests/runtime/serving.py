"""Memory that is nowhere, served by an allocator: what tests of it and of the integrations share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpumem.pool import MultiStream, SmartPool
from gpumem.runtime import Served

BASE = 2**40


class Plain:
    """Bytes that are nowhere: says how far they were asked for, and has no more than `room`."""

    def __init__(self, room: int = 2**62, base: int = BASE) -> None:
        self.base, self.evict_for, self.top, self.closed = base, room, 0, False

    def grow(self, top: int) -> None:
        if top > self.evict_for:
            raise MemoryError(f"{top} bytes asked for, {self.evict_for} are there")
        self.top = max(self.top, top)

    def close(self) -> None:
        self.closed = True


class Joins:
    """Streams that are numbers: keeps which were admitted and seen, by whom, and what was joined."""

    def __init__(self) -> None:
        self.joined: list[set[int]] = []
        self.owners: list[tuple[int, object]] = []
        self.known: set[int] = set()
        self.waits = 0

    def seen(self, stream: int, owner: object = None) -> None:
        self.known.add(stream)
        self.owners.append((stream, owner))

    def keep(self, stream: int, owner: object) -> None:
        pass

    def admit(self, stream: int, owner: object = None) -> None:
        self.seen(stream, owner)

    def join(self) -> None:
        if len(self.known) > 1:
            self.joined.append({*self.known})

    def wait(self) -> None:
        self.waits += 1

    def close(self) -> None:
        pass


def served(allocator: Any = None, room: int = 2**62) -> Served:
    return Served(allocator or SmartPool(MultiStream(), min_length=4), Plain(room), streams=Joins())


def in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "dead locked"
