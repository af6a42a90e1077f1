"""Refusals of what cannot be recorded or run under a memory limit, each with what to do instead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

from gpumem.torch.internals import PLAIN_DISPATCH, FakeTensorMode, is_compiled, mode_stack, torch, uses_dynamo
from gpumem.torch.internals.redirected import GRAPHS, redirected
from gpumem.torch.step.ops import tensors
from gpumem.torch.step.workload import WorkloadError

Tensor, Parameter = torch.Tensor, torch.nn.Parameter

COMPILED = "what torch.compile made of it cannot be recorded, and would run uncompiled here; leave torch.compile out"
GRAPHED = "a CUDA graph replays kernels that no recorder sees; record the step without it"
PARALLEL = "one process with one device is recorded; record the module that it wraps, with the batch of one process"
ONE = threading.Lock()  # of the process: one capture or run at a time, as they replace functions of PyTorch
WRAPPERS = {
    "OptimizedModule": COMPILED,
    "DistributedDataParallel": PARALLEL,
    "FullyShardedDataParallel": PARALLEL,
    "FSDPModule": "its parameters are sharded; record it without fully_shard, as one process holds it",
    "DataParallel": PARALLEL,
}


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Refuse to begin inside or beside another capture or run, or where tensors are fake."""
    for mode in mode_stack():
        if outer := getattr(mode, "alone", ""):
            raise WorkloadError(f"{what} within {outer}: leave the outer one first, or do without the inner one")
        if isinstance(mode, FakeTensorMode):
            raise WorkloadError("a FakeTensorMode is active: leave it before recording; 'meta' needs no memory either")
    if not ONE.acquire(blocking=False):
        raise WorkloadError(f"{what} beside another thread's: do one after the other, or each in its own process")
    try:
        yield
    finally:
        ONE.release()


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse compiled functions and CUDA graphs when a step calls them."""
    compiled = torch.compiler.set_stance("fail_on_recompile") if uses_dynamo() else nullcontext()  # already, perhaps
    with compiled, redirected(_refusals()):
        yield


def _refusals() -> Iterator[tuple[str, Any]]:
    yield "torch.compile", _compile
    for name in GRAPHS:  # classes, as libraries name them in annotations
        yield name, type(name.rpartition(".")[2], (), {"__new__": _refuse(GRAPHED)})


@contextmanager
def uncompiled() -> Iterator[None]:
    """Turn PyTorch's error about what was compiled before, and is called now, into a sentence of ours."""
    try:
        yield
    except RuntimeError as error:
        if "'fail_on_recompile'" not in str(error):
            raise
        raise WorkloadError(COMPILED) from error


def _compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
    """What stands in for `torch.compile`: it returns a function that refuses when it is called."""
    if isinstance(model, torch.nn.Module):
        raise WorkloadError(f"{type(model).__name__}: {COMPILED}")
    return _compile if model is None else wraps(model)(_refuse(COMPILED))


def _refuse(why: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise WorkloadError(why)

    return refused


def check_module(name: str, module: torch.nn.Module) -> None:
    """Refuse a module that spreads over devices, or was compiled."""
    for kind in type(module).__mro__:
        if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
            raise WorkloadError(f"{name or 'the model'} is a {kind.__name__}: {WRAPPERS[kind.__name__]}")
    if is_compiled(module):
        raise WorkloadError(f"{name or 'the model'} was compiled: {COMPILED}")


def check_types(func: Any, types: Sequence[type]) -> None:
    """Refuse tensors that decide for themselves what an op does."""
    for kind in types:
        if kind is Tensor or kind is Parameter:  # first, as these are nearly all; the rest takes a microsecond
            continue
        own = getattr(kind, "__torch_dispatch__", None)
        if own not in (None, PLAIN_DISPATCH, torch.Tensor.__torch_dispatch__):
            raise WorkloadError(
                f"{func} of a {kind.__name__}: what a tensor subclass runs inside is not recorded; use plain tensors"
            )


def check_layout(name: str, values: Sequence[torch.Tensor], does: str = "makes") -> None:
    """Refuse to record an op that makes, or takes, tensors that have no storage of their own."""
    for x in values:
        if x.layout is not torch.strided or x.is_nested:
            layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise WorkloadError(
                f"{name} {does} a {layout} tensor, which has no storage of its own; use dense ones (sparse=False)"
            )


def without_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> Any:
    """Run an op on tensors without values; say so where it needs some."""
    name = str(func).removeprefix("aten.")
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        why = "PyTorch cannot run it without values, and meta tensors have none; record on device='cpu'"
        raise WorkloadError(f"{name} in {where}: {why}") from error
    except RuntimeError as error:
        if "is not on the expected device" not in str(error):
            raise
        hosts = [x for x in tensors((*args, *kwargs.values()), None) if x.device.type == "cpu" and x.dim()]
        which = f"a tensor of shape {tuple(hosts[0].shape)}" if hosts else "an operand"
        raise WorkloadError(
            f"{name} in {where}: {which} is on the host, others are on the device; "
            "move it with .to(device), where device is an argument of make"
        ) from error
