"""The swap scheduler of one job: delays each copy until it is due, has its memory, and may run.

Copies that are ready go to the swap executor, the copy engines that all jobs share::

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

    `blockers`: its due time must come, its memory be granted, the copies that it depends on end; then it is ready.
    `undue`: its due time has not come yet. `awaiting`: the latches that wait for its end, at ns `end` (-1: not yet).
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
        """Call `Swaps.due` when its due time has come."""

    def ready(self, transfer: Transfer) -> None:
        """Copy as soon as the engine is free."""


class Swaps:
    """The copies of one job under one plan of `n` ops.

    `last`: the last copy that each op issued; `open`: those that have not ended, in issue order; `passive`: how many
    swap-ins an op needed before their time.
    """

    def __init__(self, owner: Owner, memory: JobMemory, count: int) -> None:
        self.owner, self.memory = owner, memory
        self.last: list[Transfer | None] = [None] * count
        self.open: list[Transfer] = []
        self.passive = 0

    def issue(self, transfer: Transfer) -> None:
        """Take a copy whose memory is requested; its due time may be still to come."""
        self.open.append(transfer)
        if transfer.op >= 0:
            self.last[transfer.op] = transfer
        transfer.undue = transfer.due > self.owner.now
        transfer.blockers = Latch(
            len(transfer.needs) + transfer.undue + 1, partial(self.owner.ready, transfer)
        )  # and its memory
        for earlier in transfer.needs:
            earlier.awaiting.append(transfer.blockers)
        if transfer.undue:
            self.owner.alarm(transfer)
        if transfer.request is not None and transfer.request.at < 0:
            transfer.request.granted = partial(self._granted, transfer, transfer.blockers)
        else:
            self._granted(transfer, transfer.blockers)

    def _granted(self, transfer: Transfer, blockers: Latch) -> None:
        self.memory.held[transfer.part].copies += 1
        blockers.arrive()

    def due(self, transfer: Transfer) -> None:
        """Let a copy go: its due time has come, or an op waits for it."""
        if transfer.undue and transfer.blockers is not None:
            transfer.undue = False
            transfer.blockers.arrive()

    def ended(self, transfer: Transfer) -> None:
        """Note that the engine has ended a copy."""
        transfer.end = self.owner.now
        self.open.remove(transfer)
        self.owner.say("in_end" if transfer.into else "out_end", transfer.part, transfer.iteration)
        self.memory.copied(transfer.part, transfer.end)
        for latch in transfer.awaiting:
            latch.arrive()

    def hurry(self, wanted: Iterable[Transfer], requests: Collection[Request], *, passive: bool) -> None:
        """Make due what the executor waits for: copies, memory, and what must end before; `passive`: an op waits."""
        pending, seen, waiting = list(wanted), set[int](), list(requests)
        while True:
            for transfer in pending:
                seen.add(id(transfer))
                if transfer.undue and transfer.into and passive:
                    self.passive += 1
                    self.owner.say("passive", transfer.part, transfer.iteration)
                self.due(transfer)
                if transfer.request is not None and transfer.request.at < 0:
                    waiting.append(transfer.request)
            before = [earlier for transfer in pending for earlier in transfer.needs] + self._make_room(waiting)
            pending = [transfer for transfer in dict.fromkeys(before) if transfer.end < 0 and id(transfer) not in seen]
            if not pending:
                return

    def _make_room(self, requests: Collection[Request]) -> list[Transfer]:
        """The copies out that must end before `requests` are granted: those that are due, then those that are next."""
        short, parts = self.memory.short(requests)
        held = self.memory.held
        ending = [transfer for transfer in self.open if transfer.part in held and held[transfer.part].over]
        chosen = []
        for transfer in sorted(ending, key=lambda transfer: (transfer.undue, transfer.due)):
            if short > 0 or transfer.part in parts:
                chosen.append(transfer)
                short -= transfer.size
        return chosen
