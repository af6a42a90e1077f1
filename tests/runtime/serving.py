"""Memory that is nowhere, served by an allocator: what tests of it and of the integrations share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from gpumem.pool import MultiStream, SmartPool
from gpumem.runtime import Served

BASE = 2**40


class Plain:
    """Bytes that are nowhere: says how far they were asked for, and has no more than `room`."""

    def __init__(self, room: int = 2**62, base: int = BASE) -> None:
        self.base, self.room, self.top, self.closed = base, room, 0, False

    def grow(self, top: int) -> None:
        if top > self.room:
            raise MemoryError(f"{top} bytes asked for, {self.room} are there")
        self.top = max(self.top, top)

    def close(self) -> None:
        self.closed = True


class Joins:
    """Streams that are numbers: keeps what was joined, and calls some of them gone."""

    def __init__(self) -> None:
        self.joined: list[set[int]] = []
        self.gone: set[int] = set()
        self.waits = 0
        self.numbers: dict[int, int] = {}

    def join(self, streams: Collection[int]) -> set[int]:
        self.joined.append({*streams})
        return self.gone & {*streams}

    def wait(self) -> None:
        self.waits += 1

    def born(self, stream: int) -> int:
        return self.numbers.get(stream, 0)

    def close(self) -> None:
        pass


def served(allocator: Any = None, room: int = 2**62) -> Served:
    return Served(allocator or SmartPool(MultiStream(), min_length=4), Plain(room), streams=Joins())


def in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "dead locked"
