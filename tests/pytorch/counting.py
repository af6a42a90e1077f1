"""Two other ways to count what a step holds; they share no code with the recorder, and look for no weak spot of it.

`allocator` asks PyTorch's allocator through its profiler: no mode is on, so the engine does what it does unwatched.
`references` counts storages by weak references under a mode of its own, so the engine adds gradients up out of place.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # or the profiler greets on standard error
Mark = Callable[[str], AbstractContextManager[Any]]
Curve = list[tuple[str, int]]  # of each op: its name, the most bytes that live until it is done
UNSEEN = {"aten::add_", "aten::zeros", "aten::scatter_", "aten::scatter_add_"}  # gradients are made by, unwatched
MODE = "PythonDispatchMode"
WRAPPED = 8  # bytes of a Python number that an operator takes as a tensor: on the host, whatever the device


class References(TorchDispatchMode):
    """Counts the storages that live after each op of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.curve: Curve = []

    def see(self, x: Any) -> None:
        if isinstance(x, (list, tuple)):
            for y in x:
                self.see(y)
        elif isinstance(x, torch.Tensor) and x.device.type == "cpu":
            storage = x.untyped_storage()
            if storage._cdata not in self.live:
                weakref.finalize(storage, self.live.pop, storage._cdata)
            self.live[storage._cdata] = storage.nbytes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see([*args, *(kwargs or {}).values()])
        result = func(*args, **(kwargs or {}))
        self.see([result, *args])
        self.curve.append((func._schema.name, sum(self.live.values())))
        return result


def references(make: Callable[[], Callable[[], object]], steps: int = 3) -> Curve:
    """The curve of the last of some steps, counted by weak references."""
    counter = References()
    with counter:
        step = make()
        for _ in range(steps):
            counter.curve.clear()
            step()
    return list(counter.curve)


def allocator(make: Callable[[], Callable[[], object]], steps: int = 3) -> tuple[Curve, int]:
    """The curve of the last of some steps, by the allocator; and its peak with what kernels take for themselves."""
    with patch("torch.inference_mode", torch.no_grad):  # where ops would arrive whole
        names = {name for name, _ in references(make, 2)}

    def run(mark: Mark) -> None:
        step = make()
        for k in range(steps):
            with mark(f"step {k}"):
                step()

    last = profiled(run, names)[f"step {steps - 1}"]
    return last.curve, last.peak


class Part(NamedTuple):
    """A part of a run: its curve, the most bytes at any moment with and without what kernels take for themselves."""

    curve: Curve
    peak: int
    held: int


def profiled(
    run: Callable[[Mark], object], names: set[str], besides: frozenset[int] = frozenset({WRAPPED})
) -> dict[str, Part]:
    """What the allocator says of each part of a run that it marks as "step ..."; all tensors are made within.

    `names` are those of the ops that count. What no op makes does not count where it has so many bytes as `besides`.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as within:
        run(torch._C._profiler._RecordFunctionFast)  # which no mode sees
    kernel_of, events = {}, []
    for event, kernel, begins in _flat(within.profiler.kineto_results.experimental_event_tree(), names | UNSEEN, None):
        kernel_of[id(event)] = kernel
        events.append((event, begins))
    return _counted(events, _own(events, kernel_of, besides), kernel_of)


def _flat(tree: Any, names: set[str], kernel: Any) -> Iterator[tuple[Any, Any, bool]]:
    """All events in their order, each with the outermost op that it is part of; ops twice, when they begin and end.

    An op that calls one of its own name, as `where` of a number, is that one and what it calls before; one that a mode
    takes is what the mode calls.
    """
    for event in tree:
        itself = event.name in names and all(child.name not in (event.name, MODE) for child in event.children)
        mine = kernel or (event if itself else None)
        yield event, mine, True
        yield from _flat(event.children, names, mine)
        yield event, mine, False


def _counted(events: list[tuple[Any, bool]], own: set[int], kernel_of: dict[int, Any]) -> dict[str, Part]:
    total = kept = most = peak = held = 0
    curve: Curve | None = None
    found: dict[str, Part] = {}
    for event, begins in events:
        kernel = kernel_of[id(event)]
        if event.name.startswith("step "):
            if begins:
                curve, peak, held = [], total, kept
            elif curve is not None:
                found[event.name], curve = Part(curve, peak, held), None
        elif event.name == "[memory]" and begins:
            size = event.extra_fields.alloc_size
            total += size
            kept += size * (id(event) not in own)
            peak, held, most = max(peak, total), max(held, kept), max(most, kept)
        elif kernel is event and begins:
            most = kept
        elif kernel is event and curve is not None:
            curve.append((event.name.replace("new_zeros", "zeros"), most))
    return found


def _own(events: list[tuple[Any, bool]], kernel_of: dict[int, Any], besides: frozenset[int]) -> set[int]:
    """The allocations, and frees, that concern no tensor of the step: a kernel's own ones, and Python numbers."""
    own, made = set(), {}
    for event, begins in events:
        if event.name != "[memory]" or not begins:
            continue
        what = event.extra_fields
        if what.alloc_size > 0:
            made[what.ptr] = event
        elif what.ptr not in made:
            own.add(id(event))  # it was there before
        else:
            maker = made.pop(what.ptr)
            kernel = kernel_of[id(maker)]
            if kernel is kernel_of[id(event)] is not None or (kernel is None and -what.alloc_size in besides):
                own |= {id(maker), id(event)}
    own |= {id(e) for e in made.values() if kernel_of[id(e)] is None and e.extra_fields.alloc_size in besides}
    return own
