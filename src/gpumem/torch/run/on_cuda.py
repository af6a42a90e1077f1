"""Copies beside a GPU's kernels: every wait of a run is in this file; `engines` has the picture.

Streams that compute are joined: where an op comes on another stream than the one before it, its stream first waits for
that one. So the ops of a run are in one order, whatever streams they run on, and "the stream that computes" is the one
of the last op. What that costs is what such streams could have done side by side. In a backward pass PyTorch makes the
stream of the forward op current, in a thread of its own, so that is no other stream than before.

All of this ran beside doubles of `torch.cuda` only, never on hardware.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import Any, Protocol

from gpumem.machine import PRESETS, Link, Machine
from gpumem.torch._torch import torch
from gpumem.torch.run.memory import quietly

LIKE = "rtx4090"  # what a card without a preset is taken for, but for its memory and its link
SMALL, LARGE, TIMES = 2**16, 2**25, 3  # bytes of the copies that measure a link, and how often


class _Event(Protocol):
    """A point of a stream, as `torch.cuda.Event`."""

    def record(self, stream: Any) -> None:
        """Stand behind what a stream was given so far."""

    def synchronize(self) -> None:
        """Let the host wait until the stream has come there."""


class _Stream(Protocol):
    """As `torch.cuda.Stream`."""

    def wait_event(self, event: Any) -> None:
        """Let what the stream is given next wait for where the event stands now."""


class Card(Protocol):
    """What the engine needs of a GPU; `Gpu` has it from `torch.cuda`."""

    place: torch.device

    def current(self) -> _Stream:
        """The stream that ops of this thread go to; the same object as long as it is the same stream."""

    def stream(self) -> _Stream:
        """Another stream, for copies."""

    def event(self) -> _Event:
        """An event that stands nowhere."""

    def pinned(self, size: int) -> torch.UntypedStorage:
        """So many bytes of the host's pinned memory."""

    def copy(self, stream: Any, target: torch.UntypedStorage, source: torch.UntypedStorage, size: int) -> None:
        """Begin to copy the first bytes of a storage to another one, on a stream."""


class Gpu:
    """The card that is current when this is made, by `torch.cuda`."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self._key: Any = None
        self._stream: Any = None

    def current(self) -> Any:
        """Ask with every op, so without making an object each time."""
        key = torch._C._cuda_getCurrentStream(self.place.index)
        if key != self._key:
            self._key, self._stream = key, torch.cuda.current_stream(self.place)
        return self._stream

    def stream(self) -> Any:
        """One that does not wait for the default stream."""
        return torch.cuda.Stream(self.place)

    def event(self, timed: bool = False) -> Any:
        """Without a time, unless it is asked for."""
        return torch.cuda.Event(enable_timing=timed)

    def pinned(self, size: int) -> torch.UntypedStorage:
        """From PyTorch's allocator of pinned memory."""
        with quietly():
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).untyped_storage()

    def copy(self, stream: Any, target: torch.UntypedStorage, source: torch.UntypedStorage, size: int) -> None:
        """Copy bytes; nothing is allocated for it."""
        with quietly(), torch.cuda.stream(stream):
            _bytes(target, size).copy_(_bytes(source, size), non_blocking=True)


class Slab:
    """Pinned memory, and the first bytes in use; `begun` and `done` stand around what was begun with it last."""

    __slots__ = ("begun", "done", "memory", "size")

    def __init__(self, card: Card, size: int) -> None:
        self.memory, self.size = card.pinned(size), 0
        self.begun, self.done = card.event(), card.event()


class OnCuda:
    """The engine of one GPU: copies on two streams of their own, one out and one in.

    Slabs are as large as a power of two, which PyTorch's allocator of pinned memory would take anyway. They stay with
    the engine, so that a step finds them again.
    """

    def __init__(self, card: Card) -> None:
        self.card, self.place = card, card.place
        self.d2h, self.h2d = card.stream(), card.stream()
        self.compute, self.joint = card.current(), card.event()
        self.others: set[_Stream] = set()  # that computed before
        self.free: dict[int, deque[Slab]] = {}

    def follow(self) -> bool:
        """Let the stream that is current be the one that computes, once it has waited for the one before."""
        current = self.card.current()
        if current is self.compute:
            return False
        self.joint.record(self.compute)
        current.wait_event(self.joint)
        self.others.add(self.compute)
        self.compute = current
        return True

    def rest(self) -> None:
        """All streams that computed go on from here, whichever of them comes first."""
        self.follow()
        self.joint.record(self.compute)
        while self.others:
            self.others.pop().wait_event(self.joint)

    def out(self, storage: torch.UntypedStorage) -> Slab:
        """Copy, once what was computed so far is there."""
        slab = self._slab(storage.nbytes())
        self._copy(self.d2h, slab, slab.memory, storage)
        return slab

    def back(self, storage: torch.UntypedStorage, copy: Slab) -> None:
        """Copy, once its memory is free of what was there before."""
        self._copy(self.h2d, copy, storage, copy.memory)

    def settle(self, copy: Slab) -> None:
        """The next kernels wait, the host does not."""
        self.compute.wait_event(copy.done)

    def drop(self, copy: Slab) -> None:
        """The slab is free at once; whoever gets it waits for the copy that may be under way."""
        self.free.setdefault(copy.memory.nbytes(), deque()).append(copy)

    def bytes_of(self, copy: Slab) -> Any:
        """The host waits."""
        copy.done.synchronize()
        with quietly():
            return _bytes(copy.memory, copy.size).numpy()

    def _slab(self, size: int) -> Slab:
        whole = 1 << (size - 1).bit_length()
        free = self.free.get(whole)
        if free:
            slab = free.popleft()
            self.d2h.wait_event(slab.done)
        else:
            slab = Slab(self.card, whole)
        slab.size = size
        return slab

    def _copy(self, side: _Stream, slab: Slab, target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        self.follow()  # memory is of the stream that is current
        slab.begun.record(self.compute)
        side.wait_event(slab.begun)
        self.card.copy(side, target, source, slab.size)
        slab.done.record(side)


def _bytes(storage: torch.UntypedStorage, size: int) -> torch.Tensor:
    """The first bytes of a storage; made anew each time, as inference mode lasts with what is made under it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))


def advice() -> list[str]:
    """What to tell somebody whose allocator will leave holes where tensors come and go."""
    said = "".join(os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    if "expandable_segments:True" in said.replace(" ", ""):
        return []
    return ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves hardly any holes where tensors come and go"]


def machine_of(gpu: Gpu) -> Machine:
    """Return what plans for a GPU are made for: the preset of its name, else an `rtx4090` with its memory and link.

    The link of a card without a preset is measured, by a few copies of 64 KiB and 32 MiB; its rates are a guess, which
    matters little, as ops are measured while they are recorded.
    """
    name = torch.cuda.get_device_name(gpu.place)
    words = re.findall(r"[a-z0-9]+", name.lower())
    runs = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    for preset in PRESETS:
        if preset in runs:
            return Machine.named(preset)
    memory = torch.cuda.get_device_properties(gpu.place).total_memory
    there, here = torch.UntypedStorage(LARGE, device=gpu.place), gpu.pinned(LARGE)
    out, into = _link(gpu, here, there), _link(gpu, there, here)
    return Machine.named(LIKE).with_(name=name, capacity=memory, out=out, into=into)


def _link(gpu: Gpu, target: torch.UntypedStorage, source: torch.UntypedStorage) -> Link:
    """Measure one direction, on the stream that is current, which the memory is of."""
    small, large = (min(_ns(gpu, target, source, size) for _ in range(TIMES)) for size in (SMALL, LARGE))
    rate = max(large - small, 0.0) / (LARGE - SMALL)
    return Link(latency_ns=max(small - SMALL * rate, 0.0), ns_per_byte=rate)


def _ns(gpu: Gpu, target: torch.UntypedStorage, source: torch.UntypedStorage, size: int) -> float:
    begin, end, stream = gpu.event(timed=True), gpu.event(timed=True), gpu.current()
    begin.record(stream)
    gpu.copy(stream, target, source, size)
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6
