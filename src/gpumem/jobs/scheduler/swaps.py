"""The swap scheduler of one job: holds each copy back until it is due, has its memory, and may run.

What it lets through goes to the swap executor, the copy engines that all jobs share::

    issued ---- time has come, bytes granted, copies before it ended ----> ready ----> engine ----> ended
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from gpumem.jobs.scheduler.memory import JobMemory, Latch, Request


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy between device part `part` and the host, of `size` bytes; `into` the device or out of it.

    `blockers`: its time must come, its memory be granted, the copies that it depends on end; then it is ready. `undue`:
    its time has not come yet. `awaiting`: who goes on when it has ended, which it has at ns `end` (-1: not yet).
    """

    iteration: int
    op: int  # in the rewritten trace; -1 for a copy that a change of plan takes
    into: bool
    part: int
    size: int
    due: int
    needs: list[Transfer]
    request: Request | None = None  # of the part's bytes
    undue: bool = False
    blockers: Latch | None = None
    awaiting: list[Latch] = field(default_factory=list)
    end: int = -1


class Owner(Protocol):
    """The executor, as its swap scheduler sees it."""

    @property
    def now(self) -> int:
        """Nanoseconds."""

    def say(self, kind: str, part: int, iteration: int) -> None:
        """Log an event of a copy that was issued in `iteration`."""

    def alarm(self, transfer: Transfer) -> None:
        """Call `Swaps.due` when its time has come."""

    def ready(self, transfer: Transfer) -> None:
        """Copy as soon as the engine is free."""


class Swaps:
    """The copies of one job under one plan of `n` ops.

    `last`: the last copy that each op issued; `open`: those that have not ended, in issue order; `passive`: how many
    swap-ins an op needed before their time.
    """

    def __init__(self, owner: Owner, memory: JobMemory, n: int) -> None:
        self.owner, self.memory = owner, memory
        self.last: list[Transfer | None] = [None] * n
        self.open: list[Transfer] = []
        self.passive = 0

    def issue(self, t: Transfer) -> None:
        """Take over a copy: its memory is asked for, its time may be still to come."""
        self.open.append(t)
        if t.op >= 0:
            self.last[t.op] = t
        t.undue = t.due > self.owner.now
        t.blockers = Latch(len(t.needs) + t.undue + 1, partial(self.owner.ready, t))  # and its memory
        for earlier in t.needs:
            earlier.awaiting.append(t.blockers)
        if t.undue:
            self.owner.alarm(t)
        if t.request is not None and t.request.at < 0:
            t.request.granted = partial(self._granted, t, t.blockers)
        else:
            self._granted(t, t.blockers)

    def _granted(self, t: Transfer, blockers: Latch) -> None:
        self.memory.held[t.part].copies += 1
        blockers.arrive()

    def due(self, t: Transfer) -> None:
        """Its time has come, or somebody waits for it."""
        if t.undue and t.blockers is not None:
            t.undue = False
            t.blockers.arrive()

    def ended(self, t: Transfer) -> None:
        """The engine is done with it."""
        t.end = self.owner.now
        self.open.remove(t)
        self.owner.say("in_end" if t.into else "out_end", t.part, t.iteration)
        self.memory.copied(t.part, t.end)
        for latch in t.awaiting:
            latch.arrive()

    def hurry(self, wanted: Iterable[Transfer], requests: Collection[Request], *, passive: bool) -> None:
        """Make due what the executor waits for: copies, memory, and what must end before; `passive`: an op waits."""
        todo, seen, asked = list(wanted), set[int](), list(requests)
        while True:
            for t in todo:
                seen.add(id(t))
                if t.undue and t.into and passive:
                    self.passive += 1
                    self.owner.say("passive", t.part, t.iteration)
                self.due(t)
                if t.request is not None and t.request.at < 0:
                    asked.append(t.request)
            before = [earlier for t in todo for earlier in t.needs] + self._make_room(asked)
            todo = [t for t in dict.fromkeys(before) if t.end < 0 and id(t) not in seen]
            if not todo:
                return

    def _make_room(self, requests: Collection[Request]) -> list[Transfer]:
        """The copies out that must end before `requests` are granted: those that are due, then those that are next."""
        short, parts = self.memory.short(requests)
        held = self.memory.held
        leaving = [t for t in self.open if t.part in held and held[t.part].over]
        found = []
        for t in sorted(leaving, key=lambda t: (t.undue, t.due)):
            if short > 0 or t.part in parts:
                found.append(t)
                short -= t.size
        return found
