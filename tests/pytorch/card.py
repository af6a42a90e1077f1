"""A double of a GPU over the host's memory: it writes down what is asked of it, and copies as late as it may.

Kernels are PyTorch's own on the host and run at once. Copies wait in the queue of their stream until somebody has to
wait for them, or until chance lets them go: any order that the waits allow, but for kernels that are late. Memory that
is given back is overwritten first, so a copy that comes too late takes nonsense along, and one that would write into
it is told of (`strays`). What a late kernel would spoil, `order` finds in the log.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch.internals import pointer
from gpumem.torch.run.engines import POINTERS, Pointers

Span = tuple[int, int]  # of addresses, half-open
SIDES = ("d2h", "h2d")
NONSENSE = 0xEE
SHAPES = (
    "_unsafe_view",
    "empty",
    "new_",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
)  # no reads


@dataclass(frozen=True)
class Record:
    stream: str
    mark: int


@dataclass(frozen=True)
class Wait:
    stream: str  # "host": the host waits
    mark: int


@dataclass(frozen=True)
class Touch:
    """A kernel or a copy."""

    stream: str
    reads: list[Span]
    writes: list[Span]
    what: str


@dataclass(frozen=True)
class Allocate:
    """Memory of a stream; of none if it is the host's."""

    stream: str
    span: Span


@dataclass(frozen=True)
class GiveBack:
    stream: str  # that is current
    span: Span


Entry = Record | Wait | Touch | Allocate | GiveBack


@dataclass(frozen=True)
class Copying:
    """A copy that was asked for; the end that is on the device may be gone when it is done."""

    out: bool
    there: weakref.ref[torch.UntypedStorage]
    address: int
    slab: torch.UntypedStorage
    size: int


@dataclass(eq=False)
class Stream:
    card: FakeCard
    name: str
    queue: deque[Copying | Wait | Record] = field(default_factory=deque)

    @property
    def kind(self) -> str:
        return self.name if self.name in SIDES else "compute"

    def wait_event(self, event: Event) -> None:
        if event.mark is None or ("wait", self.kind, event.of) == self.card.broken:
            return
        self.card.log.append(Wait(self.name, event.mark))
        if self.name in SIDES:
            self.queue.append(Wait(self.name, event.mark))
        else:
            self.card.reach(event.mark)


@dataclass(eq=False)
class Event:
    card: FakeCard
    mark: int | None = None
    of: str = ""

    def record(self, stream: Stream) -> None:
        if ("record", stream.kind) == self.card.broken:
            return
        self.mark, self.of = len(self.card.log), stream.kind
        entry = Record(stream.name, self.mark)
        self.card.log.append(entry)
        if stream.name in SIDES:
            stream.queue.append(entry)
            self.card.behind[self.mark] = stream
        self.card.chance()

    def synchronize(self) -> None:
        assert self.mark is not None
        self.card.log.append(Wait("host", self.mark))
        self.card.reach(self.mark)


class FakeCard:
    """Plays `torch.cuda`; `broken` names one kind of wait or record that it only pretends to do.

    `way` is how storages lose their memory and get it back: that of the PyTorch that is installed.
    """

    place = torch.device("cpu")
    way: type[Pointers] = POINTERS

    def __init__(self, seed: int = 0, broken: tuple[str, ...] = ()) -> None:
        self.random, self.broken = Random(seed), broken
        self.patience = self.random.choice([0, 1, 10, 1000])  # how seldom a copy is done before it has to be
        self.log: list[Entry] = []
        self.behind: dict[int, Stream] = {}  # marks that copies have not come to: the stream that has to
        self.sides: list[Stream] = []
        self.strays = 0
        self.parting: set[int] = set()  # addresses of what died, until something else may have them
        self.spans: dict[int, Span] = {}  # of storages on the device
        self.watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.now = self.main = Stream(self, "compute")

    # what the engine asks for

    def current(self) -> Stream:
        return self.now

    def stream(self) -> Stream:
        self.sides.append(Stream(self, SIDES[len(self.sides)]))
        return self.sides[-1]

    def event(self) -> Event:
        return Event(self)

    def size(self, storage: torch.UntypedStorage) -> int:
        return int(storage.nbytes())

    def pinned(self, size: int) -> torch.UntypedStorage:
        slab = torch.UntypedStorage(size)
        self.log.append(Allocate("", (pointer(slab), pointer(slab) + size)))
        return slab

    def copy(self, stream: Stream, target: torch.UntypedStorage, source: torch.UntypedStorage, size: int) -> None:
        out = stream.name == "d2h"
        there, slab = (source, target) if out else (target, source)
        ends = [(pointer(s), pointer(s) + size) for s in (source, target)]
        assert address(there), "nobody is there"
        self.see(there)
        self.log.append(Touch(stream.name, ends[:1], ends[1:], f"copy {'out' if out else 'in'}"))
        stream.queue.append(Copying(out, weakref.ref(there), pointer(there), slab, size))
        self.chance()

    # what is late

    def chance(self) -> None:
        """Let some copies go on, or none."""
        while self.sides and not self.random.randint(0, self.patience):
            side = self.random.choice(self.sides)
            if not side.queue:
                return
            self.step(side)

    def reach(self, mark: int) -> None:
        """Go on until a record is passed."""
        while mark in self.behind:
            self.step(self.behind[mark])

    def step(self, side: Stream) -> None:
        item = side.queue.popleft()
        if isinstance(item, Wait):
            self.reach(item.mark)
        elif isinstance(item, Record):
            del self.behind[item.mark]
        else:
            self.move(item)

    def move(self, item: Copying) -> None:
        storage = item.there()
        if storage is not None and address(storage) == item.address:
            ends = pointer(item.slab), item.address
            ctypes.memmove(*(ends if item.out else ends[::-1]), item.size)
        elif item.out:
            ctypes.memset(pointer(item.slab), NONSENSE, item.size)
        elif item.address not in self.parting:
            self.strays += 1

    # what is where

    def touch(self, what: str, reads: list[torch.UntypedStorage], writes: list[torch.UntypedStorage]) -> None:
        """A kernel on the stream that is current, unless it touches nothing here."""
        if not reads and not writes:
            return
        self.parting.clear()
        ends = [[self.see(s) for s in some] for some in (reads, writes)]
        self.log.append(Touch(self.now.name, *ends, what))

    def see(self, storage: torch.UntypedStorage) -> Span:
        """The addresses of a storage; it is allocated now if nobody saw it before."""
        key, lo = storage._cdata, address(storage)
        span = (lo, lo + storage.nbytes())
        if key not in self.watched:
            self.watched[key] = weakref.ref(storage, lambda _: self.died(key))
        if lo and self.spans.get(key) != span:
            self.gave(key)
            self.spans[key] = span
            self.log.append(Allocate(self.now.name, span))
        return span

    def gave(self, key: int) -> None:
        """The memory of a storage, if it has any, is somebody else's to have."""
        if (span := self.spans.pop(key, None)) is not None:
            self.log.append(GiveBack(self.now.name, span))

    def died(self, key: int) -> None:
        del self.watched[key]
        self.parting.add(self.spans.get(key, (0, 0))[0])
        self.gave(key)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    @property
    def pointers(self) -> type[Pointers]:
        """How storages lose their memory and get it, with this card as the allocator."""
        card, way = self, self.way

        class Told(way):  # type: ignore[valid-type, misc]
            @staticmethod
            def empty(storage: torch.UntypedStorage) -> None:
                ctypes.memset(pointer(storage), NONSENSE, storage.nbytes())
                card.see(storage)
                card.gave(storage._cdata)
                way.empty(storage)

            @staticmethod
            def fill(storage: torch.UntypedStorage, size: int) -> None:
                card.parting.clear()
                way.fill(storage, size)
                ctypes.memset(pointer(storage), NONSENSE, size)
                card.see(storage)

            @staticmethod
            def adopt(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
                memory = card.see(other)
                way.adopt(storage, other)
                if address(storage) == memory[0]:
                    card.spans[storage._cdata] = card.spans.pop(other._cdata)
                    card.see(storage)
                else:
                    card.touch("adopt", [other], [storage])

        return Told


class Kernels(TorchDispatchMode):
    """Tells a card of each op that runs on the host's tensors: it stands below whoever manages them."""

    def __init__(self, card: FakeCard) -> None:
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "set_":  # a view by another name
            return func(*args, **kwargs)
        named = zip(func._schema.arguments, args)
        spelled = [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        written: dict[int, torch.UntypedStorage] = {}
        operands: dict[int, torch.UntypedStorage] = {}
        for k, (argument, value) in enumerate([*named, *spelled]):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            writes = writes or ("batch_norm" in name and k in (3, 4))
            for storage in storages(value):
                operands[storage._cdata] = storage
                if writes:
                    written[storage._cdata] = storage
        shares = not written and any(r.alias_info is not None for r in func._schema.returns)
        if not shares and not name.startswith(SHAPES):
            for storage in operands.values():
                assert address(storage), f"{func} touches what is off the device"
            self.card.touch(str(func), list(operands.values()), [])
        result = func(*args, **kwargs)
        made = [s for s in storages(result) if s._cdata not in operands]
        if written or (made and not shares):
            self.card.touch(str(func), [], [*made, *written.values()])
        self.card.chance()
        return result


def storages(x: Any) -> list[torch.UntypedStorage]:
    """Those with bytes among (nested) arguments, each once."""
    if isinstance(x, (list, tuple)):
        return [s for y in x for s in storages(y)]
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or x.layout is not torch.strided:
        return []
    storage = x.untyped_storage()
    return [storage] if storage.nbytes() else []


def address(storage: torch.UntypedStorage) -> int:
    """Where the bytes of a storage are; 0 if it has no memory."""
    try:
        return pointer(storage)
    except RuntimeError:
        return 0
