"""The protocol between a program and whatever runs it: memory in two slabs, ops on streams, tokens.

A backend is handed one op at a time, in issue order, with the tokens of the ops on *other* streams that it
must wait for. Ops of one stream run in issue order; that is the backend's part of the ordering rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpumem.execute.layout import Block, Layout
from gpumem.simulator.timeline import Span

Token = Any  # what `submit` returns; only the backend looks inside
Call = Callable[[Any], None]  # starts an op on the stream that it is given (None where there are none)
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Work:
    """One op of the trace, ready to be submitted in every iteration.

    Parameters
    ----------
    op : int
        Its index in the iteration, which is its place in issue order.
    stream : int
        Which of `trace.ops.streams` it runs on.
    role : int
        An index into `columns.ROLES`.
    call : callable, optional
        Starts it; None where there is nothing to do.
    signals : bool
        Whether an op of another stream ever waits for it.
    ends : tuple of Block
        Buffers whose lifetimes end with it.
    waited : bool
        Whether the host waits for it in every iteration, in a thread that had better sleep then.
    """

    op: int
    name: str
    stream: int
    role: int
    call: Call | None
    signals: bool
    ends: tuple[Block, ...]
    waited: bool = False


class Arrays(Protocol):
    """Typed arrays over blocks, and a few that lie outside of them."""

    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a typed array over a block, of the kind that the ops take."""

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a zeroed array outside the blocks, of the kind that `view` returns."""

    def counter(self, first: int) -> Any:
        """Return a uint64[1] array outside the blocks that begins with `first`."""


class Backend(ABC):
    """Runs ops; subclass it to write an executor of your own (with `HostMemory` only two methods are left).

    A program calls `open` once, then `view` and `copier` for every op, `put` for initial values; then for
    each run `begin`, and for each op of each iteration `submit`; then `wait` and `get`.
    """

    layout: Layout | None = None  # of the program that has the slabs, as `prepare` notes

    @abstractmethod
    def open(self, layout: Layout) -> None:
        """Take the two slabs, `layout.device` and `layout.host` bytes, and all else that a run needs."""

    @abstractmethod
    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a typed array over a block, of the kind that this backend's ops take."""

    @abstractmethod
    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a zeroed array outside the slabs, of the kind that `view` returns; gone with `close`."""

    def counter(self, first: int) -> Any:
        """Return a uint64[1] array outside the slabs that begins with `first`."""
        array = self.scratch(np.uint64, (1,))
        array[:1] = first
        return array

    @abstractmethod
    def copier(self, source: Block, target: Block) -> Call:
        """Return what copies one block to another."""

    @abstractmethod
    def put(self, block: Block, data: Bytes) -> None:
        """Write `data` into a block, between runs."""

    @abstractmethod
    def get(self, block: Block) -> Bytes:
        """Return a copy of a block's bytes, between runs."""

    @abstractmethod
    def submit(self, work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        """Issue an op on its stream: it runs after the ops before it there, and after those of `after`.

        One that is left out of a round comes as a sync op, with nothing to call or touch.
        """

    @abstractmethod
    def wait(self, token: Token) -> Span:
        """Block until an op has ended; return when it ran, in ns from any fixed origin (-1: not measured)."""

    def begin(self, works: Sequence[Work], iterations: int) -> None:  # noqa: B027
        """Prepare to run these ops so many times; everything submitted before has ended, or failed."""

    def iteration(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Have one iteration submitted; a backend that replays what it saw need not call `issue` again."""
        return issue()

    def part(self, issue: Callable[[], list[Token]]) -> list[Token]:
        """Have a round submitted in which some ops are left out; it is issued, whatever `iteration` replays."""
        return issue()

    def close(self) -> None:  # noqa: B027
        """Give everything back."""

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class HostMemory(Backend):
    """The memory half of a backend whose slabs are NumPy arrays; `submit` and `wait` remain to be written."""

    slabs: tuple[Bytes, Bytes]  # device, host

    def open(self, layout: Layout) -> None:
        """Take two zeroed arrays, aligned as CUDA's allocations are."""
        self.slabs = _aligned(layout.device), _aligned(layout.host)

    def bytes(self, block: Block) -> Bytes:
        """Return the bytes of a block, not a copy."""
        return self.slabs[block.host][block.offset : block.offset + block.size]

    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a NumPy array over the block's first bytes."""
        return self.bytes(block)[: nbytes(block, dtype, shape)].view(dtype).reshape(shape)

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a new NumPy array."""
        return np.zeros(shape, dtype)

    def copier(self, source: Block, target: Block) -> Call:
        """Return a `memcpy`."""
        there, here = self.bytes(target), self.bytes(source)
        return lambda stream: np.copyto(there, here)

    def put(self, block: Block, data: Bytes) -> None:
        """Write bytes; the rest of the block becomes zero."""
        here = self.bytes(block)
        here[: len(data)], here[len(data) :] = data, 0

    def get(self, block: Block) -> Bytes:
        """Return a copy."""
        return self.bytes(block).copy()


def _aligned(size: int, alignment: int = 256) -> Bytes:
    whole = np.zeros(size + alignment, np.uint8)
    first = -whole.ctypes.data % alignment  # sums in NumPy may come out differently at another alignment
    return whole[first : first + size]


def nbytes(block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    """The bytes of such an array, if it fits into the block and is aligned there."""
    item = np.dtype(dtype).itemsize
    count = prod(shape, start=item)
    if count > block.size:
        raise ValueError(f"{block}: an array of {np.dtype(dtype)} {shape} takes {count} bytes")
    if count and block.offset % item:
        raise ValueError(f"{block}: not aligned for {np.dtype(dtype)}")
    return count
