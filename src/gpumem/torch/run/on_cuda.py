"""A GPU by `torch.cuda`, and copies beside its kernels; `residency/copy_engine.py` draws the streams and every wait.

In a backward pass PyTorch makes the stream of the forward op current, in a thread of its own, so joining streams that
compute costs no more there.

All of this ran beside doubles of `torch.cuda` only, never on hardware.
"""

from __future__ import annotations

import os
import re
from typing import Any, Protocol

from gpumem.runtime.residency.copy_engine import Beside, Card, Slab
from gpumem.simulator.machine import PRESETS, Link, Machine
from gpumem.torch.internals import cuda_stream_key, hidden_from_modes, torch

LIKE = "rtx4090"  # the preset that stands for a GPU without one, but for its memory and its link
# Bytes of the two copies by which a link is measured, and how often each is made; the fastest counts. Not tuned: 64 KiB
# are mostly latency, 32 MiB mostly bandwidth.
SMALL, LARGE, TIMES = 2**16, 2**25, 3


class TorchCard(Card, Protocol):
    """What the engine needs of a GPU; `Gpu` has it from `torch.cuda`."""

    place: torch.device


class Gpu:
    """The GPU that is current when this is made, by `torch.cuda`."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self._key: Any = None
        self._stream: Any = None

    def current(self) -> Any:
        """The current stream; asked with every op, so its object is made anew only where the stream is another."""
        key = cuda_stream_key(self.place.index)
        if key != self._key:
            self._key, self._stream = key, torch.cuda.current_stream(self.place)
        return self._stream

    def stream(self) -> Any:
        """A new stream, which does not wait for the default one."""
        return torch.cuda.Stream(self.place)

    def event(self, timed: bool = False) -> Any:
        """A new event, without a time unless that is asked for."""
        return torch.cuda.Event(enable_timing=timed)

    def size(self, storage: torch.UntypedStorage) -> int:
        """The bytes of a storage."""
        return int(storage.nbytes())

    def pinned(self, size: int) -> torch.UntypedStorage:
        """New pinned memory, from PyTorch's allocator for that."""
        with hidden_from_modes():
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).untyped_storage()

    def copy(self, stream: Any, target: torch.UntypedStorage, source: torch.UntypedStorage, size: int) -> None:
        """Copy bytes on a stream; nothing is allocated for it."""
        with hidden_from_modes(), torch.cuda.stream(stream):
            _bytes(target, size).copy_(_bytes(source, size), non_blocking=True)


class OnCuda(Beside):
    """The engine of one GPU."""

    def __init__(self, card: TorchCard) -> None:
        super().__init__(card)
        self.place = card.place

    def bytes_of(self, copy: Slab) -> Any:
        """Let the host wait for a copy; return its bytes."""
        copy.done.synchronize()
        with hidden_from_modes():
            return _bytes(copy.memory, copy.size).numpy()


def _bytes(storage: torch.UntypedStorage, size: int) -> torch.Tensor:
    """The first bytes of a storage; a new tensor each time, as one made under inference mode stays an inference one."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))


def advice() -> list[str]:
    """Notes for a user whose allocator will fragment memory where tensors come and go."""
    settings = "".join(os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    if "expandable_segments:True" in settings.replace(" ", ""):
        return []
    return ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves hardly any holes where tensors come and go"]


def machine_of(gpu: Gpu) -> Machine:
    """Return the machine that plans for a GPU are made for: the preset of its name, else an `rtx4090` with its link.

    The link of a GPU without a preset is measured, by a few copies of 64 KiB and 32 MiB, its memory asked for; its
    rates are a guess, which matters little, as ops are measured while they are recorded.
    """
    name = torch.cuda.get_device_name(gpu.place)
    words = re.findall(r"[a-z0-9]+", name.lower())
    spans = {"".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)}
    for preset in PRESETS:
        if preset in spans:
            return Machine.named(preset)
    memory = torch.cuda.get_device_properties(gpu.place).total_memory
    on_device, on_host = torch.UntypedStorage(LARGE, device=gpu.place), gpu.pinned(LARGE)
    out, into = _link(gpu, on_host, on_device), _link(gpu, on_device, on_host)
    return Machine.named(LIKE).with_(name=name, capacity=memory, out=out, into=into)


def _link(gpu: Gpu, target: torch.UntypedStorage, source: torch.UntypedStorage) -> Link:
    """Measure one direction, on the current stream, on which the memory was allocated."""
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
