"""What moves between device and host, and what moves it: the one protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumem.trace import Shape


@dataclass(slots=True)
class Counts:
    """What was done in an iteration; bytes and numbers."""

    out: int = 0
    back: int = 0
    recomputed: int = 0
    misses: int = 0
    evictions: int = 0


class Where(Enum):
    """Where the bytes of something are: on the device, on the host, to be recomputed by a recipe, uninitialised.

    ::

        NOTHING <--> DEVICE <--> HOST      it leaves for NOTHING while nothing has written it, for HOST with a copy,
                       |  ^                for RECIPE with what recomputes it; what is pinned never leaves
                       v  |
                      RECIPE
    """

    DEVICE, HOST, RECIPE, NOTHING = "device", "host", "recipe", "nothing"


@dataclass(slots=True)
class HostCopy:
    """The host's copy of something, `data` as an engine keeps it.

    `in_flight`: bytes may be on their way into it, or out of it. `drop_copy_on_return`: it is freed once they are back.
    """

    data: Any
    in_flight: bool = True
    drop_copy_on_return: bool = False


class Movable:
    """Bytes that move, and where they are.

    On the device the host may have a `copy` as well, of the same bytes; any write ends that. `version` grows with
    each write, 0 before the first. What is `pinned` stays on the device, for the reason that the text says. What is
    `exposed` may be read past whoever moves it, so it is not evicted for others; a plan may move it. A policy may know
    its `maker`, the call that recomputes it, and when it was `used` last.
    """

    where = Where.DEVICE
    copy: HostCopy | None = None
    recipe: Any = None
    dependents: Sequence[Any] = ()  # what can be recomputed only while this has the bytes it has
    version = 1
    exposed = False
    maker: Any = None
    used = 0

    def __init__(self, size: int, pinned: str = "") -> None:
        self.size, self.pinned = size, pinned

    @property
    def storage(self) -> Any:
        """What an engine moves; None once it is dead."""
        raise NotImplementedError


C = TypeVar("C", bound=Movable)


class RunOp(Protocol[C]):
    """An op that runs: `key` is what it looks like (`hints.looks`), `touched` its operands and results, each once."""

    key: int
    touched: list[C]

    @property
    def name(self) -> str:
        """What it is called."""


class Mover(Protocol):
    """Moves the bytes of storages. A copy is whatever `out` returns."""

    def out(self, storage: Any) -> Any:
        """Begin to copy a storage's bytes to the host; return the copy."""

    def back(self, storage: Any, copy: Any) -> None:
        """Begin to copy bytes back into a storage that was just given memory."""

    def wait_for_copy(self, copy: Any) -> None:
        """Let what computes next wait for what was begun last with this copy."""

    def drop(self, copy: Any) -> None:
        """Give the host's memory back."""


class Emptier(Protocol):
    """How a storage loses its memory on the device and gets it back."""

    def empty(self, storage: Any) -> None:
        """Give a storage's memory back."""

    def fill(self, storage: Any, size: int) -> None:
        """Give a storage memory."""


Bytes = NDArray[np.uint8]
LiveCall = Callable[..., Any]  # call(stream, *arrays)


class LiveBlock(Movable):
    """A block of a program: `memory` is where an environment has its bytes, while they are on the device.

    It has none before the first op that touches it.
    """

    memory: Any = None
    where, version, alive = Where.NOTHING, 0, True

    def __init__(self, number: int, size: int, kind: str, shape: Shape | None, dtype: str) -> None:
        super().__init__(size)
        self.number, self.kind, self.shape, self.dtype = number, kind, shape, dtype

    @property
    def storage(self) -> LiveBlock | None:
        """The block itself; None once it is freed."""
        return self if self.alive else None


class LiveEnvironment(Mover, Emptier, Protocol):
    """Moves the bytes of blocks (`LiveBlock`), and runs ops on them."""

    @property
    def span(self) -> tuple[int, int]:
        """When what was begun last ran or will run, in ns: start and end; -1 where that is not known."""

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> Any:
        """Begin an op on blocks that are on the device, behind all ops before it.

        It takes `duration` ns by what the program or the machine says. Return what `lasted` is to be asked with, if it
        is to be `timed` and the environment can.
        """

    def lasted(self, timer: Any) -> int:
        """Wait for an op that was timed; return how long it took, in ns."""

    def put(self, block: LiveBlock, data: Bytes) -> None:
        """Copy the program's bytes into a block, behind all ops before it."""

    def get(self, block: LiveBlock) -> Bytes:
        """Wait for all ops so far; return a copy of a block's bytes."""

    def now(self) -> int:
        """The time, in ns since some moment."""

    def close(self) -> None:
        """Give back what the environment itself has taken."""
