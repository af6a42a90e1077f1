"""A program as a list of calls, and what performs it on a device with `malloc`, `free`, `exec`, `write` and `read`.

An op computes a checksum of all that it reads and fills all that it writes with bytes drawn from that, so that one
wrong byte anywhere changes whatever comes after it::

    digest = sum over the arrays read of checksum(array, place)
    each array written = bytes of hash(digest, place, i)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import strict

Bytes = NDArray[np.uint8]
BEFORE, AFTER = "before", "after"  # where an op fails: before it has done anything, or once it has done all


class Fault(RuntimeError):
    """What an op raises that a program wants to fail."""


@dataclass(frozen=True, slots=True)
class Malloc:
    """Ask for `size` bytes; `block` is the number by which later calls mean them."""

    block: int
    size: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """Free a block."""

    block: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write random bytes into a block, drawn from `seed`."""

    block: int
    seed: int


@dataclass(frozen=True, slots=True)
class Look:
    """Read a block."""

    block: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op on blocks; with `fails` it raises a `Fault`, `before` or `after` it has done its work."""

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    duration: int = 0
    fails: str = ""


@dataclass(frozen=True, slots=True)
class Wrong:
    """Do something with a freed block: `free`, `read`, `write` or `exec`; a device refuses with ValueError."""

    call: str
    block: int


DeviceCall = Malloc | Drop | Put | Look | Compute | Wrong
Start = Callable[..., None]  # start(stream, *arrays)


class AnyDevice(Protocol):
    """What a program calls."""

    def malloc(self, size: int, *, kind: str = "") -> int:
        """Return a new block of so many bytes."""

    def free(self, block: int) -> None:
        """Give a block back."""

    def exec(
        self, op: str, reads: Sequence[int] = (), writes: Sequence[int] = (), *, call: Start, duration: int
    ) -> object:
        """Run `call(stream, *arrays)`, with one array for each block, those read first."""

    def write(self, block: int, data: Bytes) -> None:
        """Give a block bytes."""

    def read(self, block: int) -> Bytes:
        """Return a block's bytes."""


class Mixing:
    """Makes the calls of ops, on the host or on a device; see the module.

    Parameters
    ----------
    library : module, optional
        With `clear`, `checksum` and `fill` as in `gpumem.kernels`, by default `reference`, that of the host.
    digest : uint64[1], optional
        An array of the kind that this library takes. Ops use it in turn, so they have to be on one stream.

    Examples
    --------
    >>> x, y = np.arange(4, dtype=np.uint8), np.zeros(4, np.uint8)
    >>> Mixing()([0], [1])(None, x, y)
    >>> y.tolist()
    [204, 75, 47, 121]
    """

    def __init__(self, library: Any = None, digest: Any = None) -> None:
        if library is None:
            from gpumem.kernels import reference as library
        self.library, self.digest = library, np.zeros(1, np.uint64) if digest is None else digest

    def __call__(self, reads: Sequence[int], writes: Sequence[int], fails: str = "") -> Start:
        """Return the call of an op that reads and writes these blocks."""
        place = {block: number for number, block in enumerate(dict.fromkeys([*reads, *writes]))}
        read_places, written_places = [[place[block] for block in dict.fromkeys(some)] for some in (reads, writes)]
        library, digest = self.library, self.digest

        def start(stream: object, *arrays: Any) -> None:
            if fails == BEFORE:
                raise Fault(f"an op that fails {fails} its work")
            library.clear(stream, digest)
            for number in read_places:
                library.checksum(stream, arrays[number], digest, number)
            for number in written_places:
                library.fill(stream, digest, arrays[number], number)
            if fails:
                raise Fault(f"an op that fails {fails} its work")

        return start


class Unmanaged:
    """A device with no limit whose blocks are NumPy arrays: what other devices are compared with.

    Attributes
    ----------
    peak : int
        The most bytes that were allocated at once.

    Examples
    --------
    >>> device = Unmanaged()
    >>> x = device.malloc(4)
    >>> device.write(x, np.arange(4, dtype=np.uint8))
    >>> device.exec("double", [x], [x], call=lambda stream, x: np.add(x, x, out=x))
    >>> device.read(x).tolist()
    [0, 2, 4, 6]
    """

    def __init__(self) -> None:
        self.blocks: dict[int, Bytes] = {}
        self.held = self.peak = self.made = 0

    def malloc(self, size: int, *, kind: str = "", shape: Sequence[int] | None = None, dtype: str = "") -> int:
        """Return a new block, of bytes whatever `shape` and `dtype` say."""
        self.made += 1
        self.blocks[self.made] = np.zeros(size, np.uint8)
        self.held += size
        self.peak = max(self.peak, self.held)
        return self.made

    def free(self, block: int) -> None:
        """Give a block back."""
        self.held -= len(self._live(block))
        del self.blocks[block]

    def exec(
        self,
        op: str,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        *,
        call: Start | None = None,
        duration: int = 0,
        flops: float = 0,
        moved: float = 0,
    ) -> None:
        """Run an op; how long it takes is of no importance."""
        arrays = [self._live(block) for block in dict.fromkeys([*reads, *writes])]
        if call is not None:
            call(None, *arrays)

    def write(self, block: int, data: Bytes) -> None:
        """Give a block bytes."""
        self._live(block)[...] = data

    def read(self, block: int) -> Bytes:
        """Return a copy of a block's bytes."""
        return self._live(block).copy()

    def _live(self, block: int) -> Bytes:
        if block not in self.blocks:
            raise ValueError(f"block {block} is not live")
        return self.blocks[block]


@strict
def perform(calls: Iterable[DeviceCall], device: AnyDevice, mixing: Mixing | None = None) -> list[Bytes]:
    """Perform a program on a device.

    Parameters
    ----------
    calls : iterable of DeviceCall
        Such as `program(seed)` returns.
    device : AnyDevice
    mixing : Mixing, optional
        The ops, by default those of the host.

    Returns
    -------
    list of uint8 array
        What each `Look` saw. Two devices agree on it, or one of them is wrong.

    Raises
    ------
    AssertionError
        A call that the device should have refused, or an op's `Fault` that did not come out of `exec`.

    Examples
    --------
    >>> calls = [Malloc(0, 4), Put(0, seed=1), Compute("mix", (0,), (0,)), Look(0), Drop(0), Wrong("read", 0)]
    >>> [seen.tolist() for seen in perform(calls, Unmanaged())]
    [[55, 81, 173, 226]]
    """
    return Performance(device, Mixing() if mixing is None else mixing).play(calls)


class Performance:
    """A program that is being performed: its blocks, as the device calls them, and what it has seen."""

    def __init__(self, device: AnyDevice, mixing: Mixing) -> None:
        self.device, self.mixing = device, mixing
        self.id: dict[int, int] = {}
        self.size: dict[int, int] = {}
        self.seen: list[Bytes] = []

    def play(self, calls: Iterable[DeviceCall]) -> list[Bytes]:
        """Perform calls; return all that was seen so far."""
        for call in calls:
            self.perform(call)
        return self.seen

    def perform(self, call: DeviceCall) -> None:
        """Perform one call."""
        device = self.device
        match call:
            case Malloc(block, size, kind):
                self.id[block], self.size[block] = device.malloc(size, kind=kind), size
            case Drop(block):
                device.free(self.id[block])
            case Put(block, seed):
                device.write(self.id[block], drawn(seed, self.size[block]))
            case Look(block):
                self.seen.append(np.array(device.read(self.id[block]), np.uint8))
            case Compute(fails=""):
                self._exec(call)
            case Compute():
                _refuses(Fault, lambda: self._exec(call), call)
            case Wrong():
                _refuses(ValueError, lambda: self._wrong(call), call)

    def _exec(self, call: Compute) -> None:
        reads, writes = ([self.id[block] for block in row] for row in (call.reads, call.writes))
        self.device.exec(call.op, reads, writes, call=self.mixing(reads, writes, call.fails), duration=call.duration)

    def _wrong(self, call: Wrong) -> None:
        block, device = self.id[call.block], self.device
        if call.call == "exec":
            device.exec("wrong", [block], [block], call=self.mixing([block], [block]), duration=0)
        elif call.call == "write":
            device.write(block, drawn(0, self.size[call.block]))
        elif call.call == "read":
            device.read(block)
        else:
            device.free(block)


def drawn(seed: int, size: int) -> Bytes:
    """Return random bytes."""
    return np.frombuffer(Random(seed).randbytes(size), np.uint8)


def _refuses(error: type[Exception], act: Callable[[], None], call: DeviceCall) -> None:
    try:
        act()
    except error:
        return
    raise AssertionError(f"{call}: no {error.__name__} came of it")
