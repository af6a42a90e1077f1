"""What a training step takes of a device without a plan: tensors in PyTorch's allocator, workspaces, the context."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.pool.allocators import Caching
from gpumem.pool.allocators.protocol import replay
from gpumem.simulator import workspaces as convolving
from gpumem.simulator.machine import Machine
from gpumem.trace import Trace

# Bytes of a CUDA context and the libraries' handles, about, where the machine does not say. Not tuned.
CONTEXT = 512 * 2**20


@dataclass(frozen=True, slots=True, repr=False)
class Requirement(Shown):
    """Bytes of a device that a step takes as it is, apart from the context.

    Parameters
    ----------
    live : int
        Held by tensors at the peak.
    kinds : tuple of (str, int)
        What they are for there, the most bytes first.
    tensors : int
        What PyTorch's caching allocator reserves for them.
    reserved : int
        The same with the workspaces of convolutions, which it hands out as well.
    """

    live: int
    kinds: tuple[tuple[str, int], ...]
    tensors: int
    reserved: int

    def _facts(self) -> Facts:
        return {"live": human(self.live), "reserved": human(self.reserved), "workspaces": human(self.workspaces)}

    @property
    def workspaces(self) -> int:
        """What the workspaces add to the reserved bytes."""
        return self.reserved - self.tensors


@strict
def requirement(trace: Trace, worked: Trace | None = None) -> Requirement:
    """Replay a step through PyTorch's caching allocator.

    Parameters
    ----------
    trace : Trace
        Without workspaces.
    worked : Trace, optional
        The same with them (`workspaces.add`); left out, those of the fastest algorithms.

    Returns
    -------
    Requirement

    Notes
    -----
    O(B log B). What is reserved is the most after some iterations: it grows for a few, then stays.

    Examples
    --------
    >>> from gpumem import bundled
    >>> requirement(bundled("mlp3"))
    Requirement(live 231.70 MiB, reserved 242.00 MiB, workspaces 0 B)
    """
    worked = convolving.add(trace) if worked is None else worked
    tensors = _reserved(trace)
    reserved = tensors if worked is trace else max(tensors, _reserved(worked))
    return Requirement(trace.peak_live_bytes, peak_by_kind(trace), tensors, reserved)


def _reserved(trace: Trace) -> int:
    allocator = Caching()
    with suppress(ValueError):  # a buffer that wraps moves on and on: bytes are reserved for it all the same
        replay(trace, allocator)
    return allocator.statistics.reserved.peak


@strict
def peak_by_kind(trace: Trace) -> tuple[tuple[str, int], ...]:
    """Return what the device's memory is for where the live bytes are most: kinds and bytes, the most bytes first."""
    b, op = trace.buffers, trace.peak[0]
    alive = ((op - b.start) % trace.n < b.end - b.start) & ~b.host
    held: Counter[str] = Counter()
    for kind, size, here in zip(b.kind, b.size.tolist(), alive.tolist()):
        if here and kind:
            held[kind] += size
    return tuple(held.most_common())


def context_of(machine: Machine) -> int:
    """Return what the context takes on a machine: what it says, or else `CONTEXT` (a quarter of a small device).

    >>> context_of(Machine.named("rtx4090")) == CONTEXT
    True
    """
    return machine.reserved or min(CONTEXT, machine.capacity // 4)
