"""What an online allocator owes its user, as one naive model that stands between the two.

The model keeps the live blocks and who used the free bytes last, and knows nothing of how allocators work::

    address ^   | live, 300 bytes  |   nobody else gets a byte of it
            |   | freed, stream 1  |   for stream 1 at once, for others after `synchronize()`
            |   | live, 100 bytes  |
            |   | never used       |   for anybody
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from gpumem.base.arguments import strict
from gpumem.testing.allocators._stream_order import StreamOrder, Used
from gpumem.testing.contract_error import ContractError

if TYPE_CHECKING:
    from gpumem.pool.allocators.protocol import Allocator

RULES = {
    "error": "a legal request raises nothing, or MemoryError where bytes are asked for",
    "size": "a size below 1 is refused with ValueError",
    "offset": "an offset is an integer from 0 on",
    "alignment": "an offset is a multiple of the attribute `alignment`",
    "overlap": "no byte belongs to two live blocks",
    "double free": "freeing a block twice is refused with ValueError and changes nothing",
    "unknown free": "freeing what was never handed out is refused with ValueError and changes nothing",
    "stream": "bytes that one stream used go to another one only after a call of `synchronize`",
    "capacity": "live blocks have `capacity` bytes at most",
    "statistics": "`statistics` agree with what was asked for and freed",
    "service": "a new allocator has a byte to give",
    "recovery": "once everything is freed, it serves what it served when it was new",
    "growth": "the same requests again and again do not take ever higher addresses",
    "deterministic": "two allocators that are asked the same give the same offsets",
}
OPTIONAL = ("stream", "capacity", "statistics", "recovery", "growth", "deterministic")


def optional(skip: Collection[str], rules: Collection[str] = OPTIONAL) -> frozenset[str]:
    """Return `skip` as a set of rules that may be left out, or raise a ValueError that names the one that may not."""
    for rule in skip:
        if rule not in rules:
            raise ValueError(f"skip: {rule!r} is not one of {', '.join(rules)}")
    return frozenset(skip)


class Witness:
    """An allocator that passes requests on to another and objects when that one breaks the contract.

    Parameters
    ----------
    allocator : Allocator
        A new one. Its attribute `synchronize`, where it has one, is replaced: the witness counts as the one who
        executes.
    skip : collection of str
        Rules of `OPTIONAL` that it may break.

    Attributes
    ----------
    live : dict[int, int]
        Bytes of each live block, by offset.
    top : int
        Highest byte handed out so far, plus one.
    synchronises : bool
        Whether the allocator has `synchronize`, so that it may reuse bytes across streams.
    listens, coalesces : bool
        Whether it has `use`, and `sync_and_coalesce`.

    Raises
    ------
    ContractError
        From `allocate` and `free`. What a right allocator raises (`MemoryError`, `ValueError`) passes through.

    Notes
    -----
    O(live blocks + pieces of freed bytes) a request. The rules `service`, `recovery`, `growth` and
    `deterministic` take more than one allocator or more than one request: see `check_allocator`.

    Examples
    --------
    >>> class Careless:
    ...     def allocate(self, size, *, stream=0):
    ...         return 0
    >>> careless = Witness(Careless())
    >>> careless.allocate(8)
    0
    >>> careless.allocate(1)
    Traceback (most recent call last):
    gpumem.testing.contract_error.ContractError: overlap: allocate(1) returned 0, inside the live block [0, 8)
    """

    @strict
    def __init__(self, allocator: Allocator, *, skip: Collection[str] = ()) -> None:
        self.allocator = allocator
        self.skip = optional(skip)
        self.live: dict[int, int] = {}
        self.top = 0
        self.synchronises = hasattr(allocator, "synchronize")
        self.listens, self.coalesces = hasattr(allocator, "use"), hasattr(allocator, "sync_and_coalesce")
        self._used: list[Used] = []  # free bytes that a stream may still be using
        self._users: dict[int, dict[int, int]] = {}  # of a live block: streams told of by `use`, the last request
        self._order = StreamOrder()
        self._once: set[int] = set()  # offsets that were handed out at some time
        self._blocks, self._bytes = [0, 0, 0], [0, 0, 0]  # current, peak, total
        if self.synchronises:
            allocator.synchronize = self._synchronised  # type: ignore[attr-defined]

    @property
    def capacity(self) -> int | None:
        """The allocator's, None where it has none."""
        found: int | None = getattr(self.allocator, "capacity", None)
        return found

    def holes(self) -> list[tuple[int, int]]:
        """Return the free ranges below live blocks, lowest first."""
        found, floor = [], 0
        for low, size in sorted(self.live.items()):
            if low > floor:
                found.append((floor, low))
            floor = low + size
        return found

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Pass the request on; see the class."""
        call = f"allocate({size})"
        self._order.now += 1
        before = self._counted()
        try:
            answer = self.allocator.allocate(size, stream=stream)
        except MemoryError as full:
            if size < 1:
                raise ContractError("size", f"{call} raised {full!r}") from full
            self._agrees(call)
            raise
        except ValueError as refused:
            if size >= 1:
                raise ContractError("error", f"{call} raised {refused!r}") from refused
            self._unchanged("size", call, before)
            raise
        except Exception as other:
            raise ContractError("error" if size >= 1 else "size", f"{call} raised {other!r}") from other
        if size < 1:
            self._broken("size", f"{call} returned {answer!r}")
        offset = self._range(call, answer, size)
        self._ordered(call, offset, size, stream)
        self._hand_out(offset, size, stream)
        self._agrees(call)
        return offset

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Pass the request on; see the class."""
        call = f"free({offset})"
        self._order.now += 1
        if offset not in self.live:
            self._refuses(call, offset, stream)
        size = self.live.pop(offset)
        for count, change in ((self._blocks, 1), (self._bytes, size)):
            count[0] -= change
        self._order.freed(offset, stream)
        users = {**self._users.pop(offset, {}), stream: self._order.now}
        self._used += [Used(offset, offset + size, s, until) for s, until in users.items()]  # the call may synchronise
        try:
            self.allocator.free(offset, stream=stream)
        except Exception as refused:
            raise ContractError("error", f"{call} of a live block raised {refused!r}") from refused
        self._agrees(call)

    def use(self, offset: int, *, stream: int = 0) -> None:
        """Pass on that `stream` works on a live block too; where nobody listens, the last stream waits for it."""
        call = f"use({offset})"
        self._order.now += 1
        self._order.shared(offset, stream)
        if not self.listens:
            return
        self._users.setdefault(offset, {})[stream] = self._order.now
        self._tells(call, partial(self.allocator.use, offset, stream=stream))  # type: ignore[attr-defined]

    def sync_and_coalesce(self) -> None:
        """Pass the request on to one that has it."""
        if self.coalesces:
            self._tells("sync_and_coalesce()", self.allocator.sync_and_coalesce)  # type: ignore[attr-defined]

    def _tells(self, call: str, request: Callable[[], None]) -> None:
        try:
            request()
        except Exception as refused:
            raise ContractError("error", f"{call} raised {refused!r}") from refused
        self._agrees(call)

    def _synchronised(self) -> None:
        """All that streams have been given so far comes before what they are given next."""
        self._used.clear()
        self._users.clear()

    def _refuses(self, call: str, offset: int, stream: int) -> NoReturn:
        rule = "double free" if offset in self._once else "unknown free"
        before = self._counted()
        try:
            self.allocator.free(offset, stream=stream)
        except ValueError:
            self._unchanged(rule, call, before)
            raise
        except Exception as other:
            raise ContractError(rule, f"{call} raised {other!r}") from other
        self._broken(rule, f"{call} was accepted")

    def _range(self, call: str, answer: object, size: int) -> int:
        """Check where the block lies and return its offset."""
        try:
            offset = index(answer)  # type: ignore[arg-type]
        except TypeError:
            self._broken("offset", f"{call} returned {answer!r}, which is no integer")
        if offset < 0:
            self._broken("offset", f"{call} returned {offset}")
        alignment = getattr(self.allocator, "alignment", 1)
        if offset % alignment:
            self._broken("alignment", f"{call} returned {offset}, which is not a multiple of {alignment}")
        for low, length in self.live.items():
            if offset < low + length and low < offset + size:
                where = "inside" if low <= offset else f"the first of {size} bytes that run into"
                self._broken("overlap", f"{call} returned {offset}, {where} the live block [{low}, {low + length})")
        return offset

    def _ordered(self, call: str, offset: int, size: int, stream: int) -> None:
        """Check that no other stream may still be using the bytes; from now on they are used by this block."""
        left, end = [], offset + size
        for use in self._used:
            if use.high <= offset or end <= use.low:
                left.append(use)
                continue
            if not self._order.before(use, stream) and "stream" not in self.skip:
                got = f"bytes [{max(use.low, offset)}, {min(use.high, end)}), used on stream {use.stream}"
                self._broken("stream", f"{call} for stream {stream} got {got} and not synchronised")
            left += [replace(use, low=a, high=b) for a, b in ((use.low, offset), (end, use.high)) if a < b]
        self._used[:] = left

    def _hand_out(self, offset: int, size: int, stream: int) -> None:
        self.live[offset] = size
        self._order.allocated(offset, stream)
        self._once.add(offset)
        self.top = max(self.top, offset + size)
        for count, change in ((self._blocks, 1), (self._bytes, size)):
            count[0] += change
            count[1] = max(count[1], count[0])
            count[2] += change

    def _agrees(self, call: str) -> None:
        """Compare what the allocator says of itself with the model."""
        held, capacity = self._bytes[0], self.capacity
        if capacity is not None and held > capacity and "capacity" not in self.skip:
            self._broken("capacity", f"{call}: live blocks have {held} bytes, the capacity is {capacity}")
        found = getattr(self.allocator, "statistics", None)
        if found is None or "statistics" in self.skip:
            return
        for name, model in (("blocks", self._blocks), ("requested", self._bytes)):
            count = getattr(found, name)
            for part, mine in zip(("current", "peak", "total"), model):
                if getattr(count, part) != mine:
                    told = f"{name}.{part} is {getattr(count, part)}, right is {mine}"
                    self._broken("statistics", f"after {call}, {told}")
        asked, given, taken = found.requested.current, found.allocated.current, found.reserved.current
        if not asked <= given <= taken <= found.reserved.peak:
            told = f"requested {asked} <= allocated {given} <= reserved {taken} <= its peak {found.reserved.peak}"
            self._broken("statistics", f"after {call}, this does not hold: {told}")

    def _counted(self) -> Any:
        """Return a copy of the statistics, None where there are none."""
        found = getattr(self.allocator, "statistics", None)
        if found is None or "statistics" in self.skip:
            return None
        parts = ("blocks", "requested", "allocated", "reserved")
        return [(getattr(found, p).current, getattr(found, p).peak, getattr(found, p).total) for p in parts]

    def _unchanged(self, rule: str, call: str, before: Any) -> None:
        if self._counted() != before:
            self._broken(rule, f"{call} raised ValueError, but changed the statistics")

    def _broken(self, rule: str, reason: str) -> NoReturn:
        raise ContractError(rule, reason)
