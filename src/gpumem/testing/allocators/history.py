"""A history of requests: played on any allocator, cut short, and printed as a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpumem.base.arguments import strict
from gpumem.testing.allocators.contract import Witness
from gpumem.testing.contract_error import ContractError
from gpumem.testing.requests import Allocate, Free, Request, Sync, Use, WrongFree

if TYPE_CHECKING:
    from gpumem.pool.allocators.protocol import Allocator


class Player:
    """Performs requests on a witness, remembers where the blocks lie, and writes down what it did.

    Attributes
    ----------
    live, freed : dict[int, int]
        Offset of each block that is live, and that was freed.
    done : list of Request
        What was performed, without the requests that did nothing.
    offsets : list of int or None
        What each `Allocate` among them got; None where it was refused.
    log : list of str
        The same as lines of a program.

    Examples
    --------
    >>> from gpumem.pool import Native
    >>> player = Player(Witness(Native(granularity=1)))
    >>> for request in (Allocate(0, 8), Allocate(1, 4, stream=1)):
    ...     player.perform(request)
    >>> print(*player.log, sep="\\n")
    p0 = a.allocate(8)  # 0
    p1 = a.allocate(4, stream=1)  # 8
    """

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.live: dict[int, int] = {}
        self.freed: dict[int, int] = {}
        self.done: list[Request] = []
        self.offsets: list[int | None] = []
        self.log: list[str] = []
        self._stream: dict[int, int] = {}

    def perform(self, request: Request) -> None:
        """Perform one request; raise a `ContractError` that says what led to it, counting requests from 0."""
        try:
            if isinstance(request, Allocate):
                self._allocate(request)
            elif isinstance(request, Free):
                if request.block in self.live:
                    self._free(request)
            elif isinstance(request, Use):
                if request.block in self.live and self.witness.listens:
                    self._use(request)
            elif isinstance(request, Sync):
                if self.witness.coalesces:
                    self._write(request, "a.sync_and_coalesce()")
                    self.witness.sync_and_coalesce()
            elif (offset := self._wrong(request)) is not None:
                self._refused(request, offset)
        except ContractError as broken:
            reason = f"request {len(self.done) - 1}, {broken.reason}"
            raise ContractError(broken.rule, reason, self.log, self.done) from broken.__cause__

    def blocks(self) -> list[int]:
        """Return the live blocks, lowest address first."""
        return sorted(self.live, key=self.live.__getitem__)

    def free_all(self) -> None:
        """Free every live block on the stream that it was allocated for."""
        for block in list(self.live):
            self.perform(Free(block, self._stream[block]))

    def _allocate(self, request: Allocate) -> None:
        self._write(request, f"p{request.block} = a.allocate({request.size}{_on(request.stream)})")
        offset: int | None = None
        try:
            offset = self.witness.allocate(request.size, stream=request.stream)
        except (MemoryError, ValueError) as refused:
            self.log[-1] += f"  # {type(refused).__name__}"
        else:
            self.log[-1] += f"  # {offset}"
            self.live[request.block] = offset
            self._stream[request.block] = request.stream
        self.offsets.append(offset)

    def _free(self, request: Free) -> None:
        self._write(request, f"a.free(p{request.block}{_on(request.stream)})")
        offset = self.freed[request.block] = self.live.pop(request.block)
        self.witness.free(offset, stream=request.stream)

    def _use(self, request: Use) -> None:
        self._write(request, f"a.use(p{request.block}{_on(request.stream)})")
        self.witness.use(self.live[request.block], stream=request.stream)

    def _wrong(self, request: WrongFree) -> int | None:
        """Return the offset that it means, None where there is nothing wrong with it."""
        base = 0 if request.block < 0 else self.live.get(request.block, self.freed.get(request.block))
        offset = None if base is None else base + request.distance
        return None if offset in self.witness.live else offset

    def _refused(self, request: WrongFree, offset: int) -> None:
        self._write(request, f"a.free({offset})")
        try:
            self.witness.free(offset)
        except ValueError:
            self.log[-1] += "  # ValueError"

    def _write(self, request: Request, line: str) -> None:
        self.done.append(request)
        self.log.append(line)


def _on(stream: int) -> str:
    return f", stream={stream}" if stream else ""


@strict
def play(allocator: Allocator, requests: Iterable[Request]) -> list[int | None]:
    """Perform requests on a new allocator and hold every answer against the contract.

    Parameters
    ----------
    allocator : Allocator
    requests : iterable of Request
        Such as `gpumem.testing.allocators.request_strategies.requests()` draws.

    Returns
    -------
    list of int or None
        The offset that each `Allocate` got, None where it was refused.

    Raises
    ------
    ContractError
        The first rule that it broke.

    Examples
    --------
    >>> from gpumem.pool import Native
    >>> play(Native(granularity=1), [Allocate(0, 8), Allocate(1, 4), Free(0), Allocate(2, 8)])
    [0, 8, 0]
    """
    player = Player(Witness(allocator))
    for request in requests:
        player.perform(request)
    return player.offsets
