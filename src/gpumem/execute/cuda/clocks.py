"""Timing events that take turns: none is created while ops are issued, however long a run is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Clocks:
    """Timing events of a run.

    Whoever records one hands over its token; when the host has waited for that, the event serves another. Between two
    iterations `turn` waits for the oldest tokens until there are events for one iteration more.

    Parameters
    ----------
    create : callable
        Returns a new timing event.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self.create = create
        self.every: list[Any] = []
        self.free: list[Any] = []
        self.out: deque[Any] = deque()  # tokens whose events are in use, oldest first
        self.need = 0

    def begin(self, need: int, turns: int) -> None:
        """Begin a run whose iterations take `need` events each; so many may be under way at once."""
        while len(self.every) < need * turns:
            self.every.append(self.create())
        self.free, self.need = self.every.copy(), need
        self.out.clear()

    def turn(self, wait: Callable[[Any], object]) -> None:
        """Have events for one iteration; called between two, since it may wait."""
        while self.out and (self.out[0].span is not None or len(self.free) < self.need):
            wait(self.out.popleft())

    def take(self) -> Any:
        """Return an event that nobody uses."""
        if not self.free:  # more ops than `begin` was told of
            self.every.append(self.create())
            return self.every[-1]
        return self.free.pop()

    def give(self, *events: Any) -> None:
        """Take back events that the host has waited for."""
        self.free += [event for event in events if event is not None]
