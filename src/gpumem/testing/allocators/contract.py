"""What an online allocator owes its user, as one naive model that stands between the two.

The model keeps the live blocks and who used the free bytes last, and knows nothing of how allocators work::

    address ^   | live, 300 bytes  |   nobody else gets a byte of it
            |   | freed, stream 1  |   for stream 1 at once, for others after `synchronize()`
            |   | live, 100 bytes  |
            |   | never used       |   for anybody
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
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
    "unknown free": "freeing what was never allocated is refused with ValueError and changes nothing",
    "stream": "bytes that one stream used go to another one only after a call of `synchronize`",
    "capacity": "live blocks have `capacity` bytes at most",
    "statistics": "`statistics` agree with what was asked for and freed",
    "service": "a new allocator has a byte to give",
    "recovery": "once everything is freed, it serves what it served when it was new",
    "growth": "the same requests, repeated, do not take ever higher addresses",
    "deterministic": "two allocators that are asked the same give the same offsets",
}
OPTIONAL = ("stream", "capacity", "statistics", "recovery", "growth", "deterministic")


def optional(skip: Collection[str], rules: Collection[str] = OPTIONAL) -> frozenset[str]:
    """Return `skip` as a set of rules that may be left out, or raise a ValueError that names the one that may not."""
    for rule in skip:
        if rule not in rules:
            raise ValueError(f"skip: {rule!r} is not one of {', '.join(rules)}")
    return frozenset(skip)


@dataclass(slots=True)
class _Counted:
    """What the model counts: as `gpumem.pool.allocators.protocol.Count`, of which it shares no code."""

    current: int = 0
    peak: int = 0
    total: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        self.total += amount


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
        Highest byte allocated so far, plus one.
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
        self._users: dict[int, dict[int, int]] = {}  # of a live block: streams that `use` named, the last request
        self._order = StreamOrder()
        self._ever_allocated: set[int] = set()  # offsets that were allocated at some time
        self._blocks, self._bytes = _Counted(), _Counted()
        if self.synchronises:
            allocator.synchronize = self._synchronised  # type: ignore[attr-defined]

    @property
    def capacity(self) -> int | None:
        """The allocator's, None where it has none."""
        capacity: int | None = getattr(self.allocator, "capacity", None)
        return capacity

    def holes(self) -> list[tuple[int, int]]:
        """Return the free ranges below live blocks, lowest first."""
        holes, top = [], 0
        for low, size in sorted(self.live.items()):
            if low > top:
                holes.append((top, low))
            top = low + size
        return holes

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
        self._blocks.current -= 1
        self._bytes.current -= size
        self._order.freed(offset, stream)
        users = {**self._users.pop(offset, {}), stream: self._order.now}
        self._used += [
            Used(offset, offset + size, name, until) for name, until in users.items()
        ]  # the call may synchronise
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
        self._passes(call, partial(self.allocator.use, offset, stream=stream))  # type: ignore[attr-defined]

    def sync_and_coalesce(self) -> None:
        """Pass the request on to one that has it."""
        if self.coalesces:
            self._passes("sync_and_coalesce()", self.allocator.sync_and_coalesce)  # type: ignore[attr-defined]

    def _passes(self, call: str, request: Callable[[], None]) -> None:
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
        rule = "double free" if offset in self._ever_allocated else "unknown free"
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
            left += [
                replace(use, low=low, high=high) for low, high in ((use.low, offset), (end, use.high)) if low < high
            ]
        self._used[:] = left

    def _hand_out(self, offset: int, size: int, stream: int) -> None:
        self.live[offset] = size
        self._order.allocated(offset, stream)
        self._ever_allocated.add(offset)
        self.top = max(self.top, offset + size)
        self._blocks.add(1)
        self._bytes.add(size)

    def _agrees(self, call: str) -> None:
        """Raise a ContractError if, after `call`, live blocks exceed the capacity or the statistics are not right."""
        held, capacity = self._bytes.current, self.capacity
        if capacity is not None and held > capacity and "capacity" not in self.skip:
            self._broken("capacity", f"{call}: live blocks have {held} bytes, the capacity is {capacity}")
        statistics = getattr(self.allocator, "statistics", None)
        if statistics is None or "statistics" in self.skip:
            return
        for name, model in (("blocks", self._blocks), ("requested", self._bytes)):
            count = getattr(statistics, name)
            for part in ("current", "peak", "total"):
                if getattr(count, part) != (right := getattr(model, part)):
                    reason = f"{name}.{part} is {getattr(count, part)}, right is {right}"
                    self._broken("statistics", f"after {call}, {reason}")
        asked, given, taken = (
            count.current for count in (statistics.requested, statistics.allocated, statistics.reserved)
        )
        if not asked <= given <= taken <= statistics.reserved.peak:
            order = f"requested {asked} <= allocated {given} <= reserved {taken} <= its peak {statistics.reserved.peak}"
            self._broken("statistics", f"after {call}, this does not hold: {order}")

    def _counted(self) -> Any:
        """Return a copy of the statistics, None where there are none."""
        statistics = getattr(self.allocator, "statistics", None)
        if statistics is None or "statistics" in self.skip:
            return None
        parts = ("blocks", "requested", "allocated", "reserved")
        return [
            (getattr(statistics, part).current, getattr(statistics, part).peak, getattr(statistics, part).total)
            for part in parts
        ]

    def _unchanged(self, rule: str, call: str, before: Any) -> None:
        if self._counted() != before:
            self._broken(rule, f"{call} raised ValueError, but changed the statistics")

    def _broken(self, rule: str, reason: str) -> NoReturn:
        raise ContractError(rule, reason)
