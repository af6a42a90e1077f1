"""How long the ops of a training step take for real, and how fast the device is that they run on."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gpumem.base.arguments import at_least, strict
from gpumem.base.display import Shown
from gpumem.base.names import one_of
from gpumem.simulator.machine import Link, Machine
from gpumem.torch.capture.capture import record
from gpumem.torch.internals import TorchDispatchMode, torch
from gpumem.torch.step.timing import HostStopwatch, stopwatch
from gpumem.torch.step.workload import Make, WorkloadError, blamed, made, name_of
from gpumem.trace import Trace

DEVICES = ("cpu", "cuda")
SIDE = 1024  # rows and columns of the product that tells the rate; its three matrices fill most of an L2 of 16 MiB
LARGE = 2**26  # bytes of the copy that tells the bandwidth: beyond the caches of most machines
TIMES = 9  # repetitions; the fastest counts for rates, the median for the time of an op of one element; not tuned
SMALL = 200  # ops of one element that are timed; not tuned


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MeasuredStep(Shown):
    """One iteration of a training step, with the time of each op.

    Parameters
    ----------
    trace : Trace
        Durations are medians over the iterations.
    iteration_ns : int
        How long an iteration takes without a recorder, the median.
    """

    trace: Trace
    iteration_ns: int


@strict
def measure(
    make: Make, device: str = "cpu", *, batch: int | None = None, iterations: int = 11, warmup: int = 3, name: str = ""
) -> MeasuredStep:
    """Train for some iterations, first with nobody watching, then with each op timed.

    Parameters
    ----------
    make : callable
        As in `capture`.
    device : str
        `cpu`: ops are timed by a clock of the host around each, where PyTorch has one thread by that of the thread,
        so that what else the machine does is not in it; `cuda`: by events.
    batch : int, optional
        Handed on to `make`.
    iterations, warmup : int
        How many count, and how many go before, each time.
    name : str
        Of the trace; by default that of `make`.

    Raises
    ------
    WorkloadError
        The step cannot be recorded; PyTorch sees no such device.

    Notes
    -----
    On the host the time of an op includes what it takes to call it from Python, some microseconds (`rates`), which an
    iteration without a recorder does not pay for ops of the backward pass. What is no op of its own, as a view, is not
    timed.

    Examples
    --------
    >>> import torch
    >>> def make(batch=8):
    ...     net = torch.nn.Linear(4, 2)
    ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ...     def step():
    ...         net(torch.ones(batch, 4)).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     return step
    >>> step = measure(make, iterations=3)
    >>> bool((step.trace.ops.duration > 0).all())
    True
    """
    _check_device(device)
    at_least(1, iterations=iterations)
    at_least(0, warmup=warmup)
    alone = _alone(make, device, batch, iterations, warmup)
    captured = record(
        make, device, batch=batch, iterations=max(iterations, 2), warmup=warmup, timed=True, name=name or name_of(make)
    )
    took = [captured.recording.ops.duration[lo:hi] for lo, hi in captured.bounds[warmup:]]
    trace = captured.trace
    duration = np.rint(np.median(took, axis=0)).astype(np.int64)
    return MeasuredStep(replace(trace, ops=replace(trace.ops, duration=duration)), alone)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let ops on the host run on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _alone(make: Make, device: str, batch: int | None, iterations: int, warmup: int) -> int:
    step = made(make, device, batch)
    with blamed("a step"):
        took = _times(device, step, warmup + iterations)
    return round(statistics.median(took[warmup:]))


def _clock(device: str) -> Callable[[], int]:
    """The host's clock; on `cpu` that of its ops."""
    return HostStopwatch().clock if device == "cpu" else time.perf_counter_ns


def _times(device: str, run: Callable[[], object], count: int) -> list[int]:
    """The ns of each of some runs."""
    took, clock = [], _clock(device)
    for _ in range(count):
        begin = clock()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(clock() - begin)
    return took


@strict
def rates(device: str = "cpu") -> Machine:
    """Measure how fast a device is: products of float32 matrices, copies of memory, ops of nothing.

    Its roofline is of what it reaches, so its efficiencies are 1, and `launch_ns` is what an op of one element takes as
    `measure` times it. The links are of copies from and to the host; on `cpu` these are copies within its memory.

    >>> machine = rates()
    >>> machine.name, machine.flops > 1e9, machine.bandwidth > 1e8
    ('cpu', True, True)
    """
    _check_device(device)
    x = torch.ones(SIDE, SIDE, device=device)
    source, target = (torch.zeros(LARGE // 4, device=device) for _ in range(2))
    host = torch.zeros(LARGE // 4, pin_memory=device == "cuda")
    product = _fastest(device, partial(torch.mm, x, x))
    copy, out, into = (
        _fastest(device, partial(to.copy_, of)) for to, of in ((target, source), (host, source), (target, host))
    )
    return Machine(
        device,
        _memory(device),
        Link(0, round(out / LARGE, 7)),
        Link(0, round(into / LARGE, 7)),
        flops=round(2e9 * SIDE**3 / product),
        bandwidth=round(2e9 * LARGE / copy),
        flops_efficiency=1.0,
        bandwidth_efficiency=1.0,
        launch_ns=_nothing_ns(device),
    )


def _check_device(device: str) -> None:
    one_of("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise WorkloadError("device: 'cuda': PyTorch sees no CUDA device here; 'cpu' needs none")


def _memory(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _fastest(device: str, run: Callable[[], object]) -> int:
    """The ns of the fastest of some runs, as what disturbs one makes it slower."""
    return max(min(_times(device, run, TIMES)), 1)


def _nothing_ns(device: str) -> float:
    """What an op of one element takes under a mode that times it."""
    watch = stopwatch(device) or HostStopwatch()

    class Timing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return watch(func, args, kwargs or {})

    x = torch.ones(1, device=device)
    with Timing():
        for _ in range(SMALL):
            x.add_(x)
    return float(statistics.median(watch.read()))
