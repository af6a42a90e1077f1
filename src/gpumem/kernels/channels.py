"""The elements of a channel of (N, C, ...), dealt out to the threads of a block: without a division for each."""

from __future__ import annotations

from typing import Any

from gpumem.kernels.numba_cuda import cuda, device


@device
def first(channel: Any, channels: Any, inner: Any) -> Any:
    """Return where this thread's first element of a channel is, in the array and in its plane of `inner` elements."""
    place = cuda.threadIdx.x % inner
    return (cuda.threadIdx.x // inner * channels + channel) * inner + place, place


@device
def strides(channels: Any, inner: Any) -> Any:
    """Return what `following` adds: from element to element of a thread, and over to the channel's next plane."""
    place = cuda.blockDim.x % inner
    return cuda.blockDim.x // inner * channels * inner + place, place, (channels - 1) * inner, inner


@device
def following(at: Any, place: Any, strides: Any) -> Any:
    """Return where this thread's next element is, in the array and in its plane."""
    hop, step, over, inner = strides
    at, place = at + hop, place + step
    return (at + over, place - inner) if place >= inner else (at, place)
