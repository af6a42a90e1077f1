"""A card of `torch.cuda`, and copies beside its kernels; `residency/copy_engine.py` has the picture and every wait.

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

LIKE = "rtx4090"  # what a card without a preset is taken for, but for its memory and its link
SMALL, LARGE, TIMES = 2**16, 2**25, 3  # bytes of the copies that measure a link, and how often


class TorchCard(Card, Protocol):
    """What the engine needs of a GPU; `Gpu` has it from `torch.cuda`."""

    place: torch.device


class Gpu:
    """The card that is current when this is made, by `torch.cuda`."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self._key: Any = None
        self._stream: Any = None

    def current(self) -> Any:
        """Ask with every op, so without making an object each time."""
        key = cuda_stream_key(self.place.index)
        if key != self._key:
            self._key, self._stream = key, torch.cuda.current_stream(self.place)
        return self._stream

    def stream(self) -> Any:
        """One that does not wait for the default stream."""
        return torch.cuda.Stream(self.place)

    def event(self, timed: bool = False) -> Any:
        """Without a time, unless it is asked for."""
        return torch.cuda.Event(enable_timing=timed)

    def size(self, storage: torch.UntypedStorage) -> int:
        """Of a storage."""
        return int(storage.nbytes())

    def pinned(self, size: int) -> torch.UntypedStorage:
        """From PyTorch's allocator of pinned memory."""
        with hidden_from_modes():
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).untyped_storage()

    def copy(self, stream: Any, target: torch.UntypedStorage, source: torch.UntypedStorage, size: int) -> None:
        """Copy bytes; nothing is allocated for it."""
        with hidden_from_modes(), torch.cuda.stream(stream):
            _bytes(target, size).copy_(_bytes(source, size), non_blocking=True)


class OnCuda(Beside):
    """The engine of one GPU."""

    def __init__(self, card: TorchCard) -> None:
        super().__init__(card)
        self.place = card.place

    def bytes_of(self, copy: Slab) -> Any:
        """The host waits."""
        copy.done.synchronize()
        with hidden_from_modes():
            return _bytes(copy.memory, copy.size).numpy()


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
