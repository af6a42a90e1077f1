"""The judge of steps that run under a limit: the same steps without one, and what they hold by PyTorch's allocator.

A `Lesson` is a training that can be begun anew: `taught` runs it, under a manager or none, and returns all that it left
as bytes. `measured` does so under PyTorch's profiler, and returns how many bytes tensors held in each step.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import managed, record
from gpumem.torch.step.ops import WRITTEN_AS
from gpumem.trace import Trace
from tests.pytorch.counting import WRAPPED, Mark, profiled
from tests.pytorch.nets import NETS, OPTIMIZERS, data
from tests.pytorch.world import world as changed

STEPS = 20
PLANNERS = ("tensile", "checkpoint", "on-demand")
HOW: dict[str, Any] = {"device": "cpu", "wait": True, "planner": PLANNERS}  # of `managed`, in nearly all tests
Manage = Callable[[], AbstractContextManager[Any]]
address = torch._C.StorageBase.data_ptr  # of nobody's making
Left = dict[str, tuple[Any, ...]]


class Lesson:
    """A training of a small net.

    Parameters
    ----------
    net, optimizer : str
        Of `nets.NETS`, `nets.OPTIMIZERS`.
    build : callable, optional
        Makes the net, which takes the data of `net`.
    autocast : bool
    accumulate : int
        Batches in a step.
    clears : str
        When gradients are cleared: `first` or `last` in a step.
    sums : bool
        Whether the step looks at each gradient before the optimizer does.
    between : callable, optional
        `between(lesson, k)` is called in step k, after the forward pass of its first batch.
    """

    def __init__(
        self,
        net: str,
        optimizer: str,
        build: Callable[[], nn.Module] | None = None,
        *,
        autocast: bool = False,
        accumulate: int = 1,
        clears: str = "last",
        sums: bool = False,
        between: Callable[[Any, int], object] = lambda lesson, k: None,
    ) -> None:
        self.net, self.make_optimizer, self.build = net, OPTIMIZERS.get(optimizer), build or NETS[net]
        self.autocast, self.accumulate, self.clears, self.sums = autocast, accumulate, clears, sums
        self.between = between

    def start(self) -> None:
        """Build everything anew."""
        torch.manual_seed(0)
        self.model = self.build()
        widen(self.model)
        self.opt: Any = self.make_optimizer(self.model.parameters()) if self.make_optimizer else None
        self.said: list[Any] = []  # numbers that the step has seen
        self.kept: list[torch.Tensor] = []

    def loss(self, k: int, part: int) -> torch.Tensor:
        """The loss of a batch."""
        x, y = data(self.net, 3)
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            loss = F.cross_entropy(self.model(x).float(), y) / self.accumulate
        if not part:
            self.between(self, k)
        return loss

    def step(self, k: int) -> None:
        """Run step k."""
        if self.clears == "first":
            self.opt.zero_grad()
        for part in range(self.accumulate):
            loss = self.loss(k, part)
            loss.backward()
        self.said.append(loss.item().hex())
        del loss
        if self.sums:
            self.said += [int(p.grad.view(torch.int32).sum()) for p in self.model.parameters() if p.grad is not None]
        self.opt.step()
        if self.clears == "last":
            self.opt.zero_grad()

    def left(self) -> Left:
        """All that is left, as bytes; no manager is there any more."""
        found: dict[str, Any] = {**self.model.state_dict(keep_vars=True)}
        found |= {f"grad of {name}": p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        if self.opt is not None:
            for k, state in enumerate(self.opt.state.values()):
                found |= {f"{what} of {k}": x for what, x in state.items() if isinstance(x, torch.Tensor)}
        found |= {f"kept {k}": x for k, x in enumerate(self.kept)}
        return left(found, self.said)


def widen(model: nn.Module) -> None:
    """Let batch norms count in more than 8 bytes, which would look like a number on its way into an op."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = torch.zeros(3, dtype=torch.int64)


def left(found: dict[str, torch.Tensor], said: Iterable[Any]) -> Left:
    """Tensors by name as bytes, what was said, and the random state."""
    found = {**found, "random state": torch.get_rng_state()}
    return {name: bits(x) for name, x in found.items()} | {f"said {k}": (what,) for k, what in enumerate(said)}


def bits(x: torch.Tensor) -> tuple[Any, ...]:
    """What there is to a tensor."""
    if x.layout is not torch.strided:
        x = x.detach().coalesce()
        return (x.layout, x.shape, *bits(x.indices()), *bits(x.values()))
    return x.dtype, tuple(x.shape), x.stride(), x.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def taught(lesson: Any, manage: Manage = nullcontext, steps: int = STEPS, mark: Mark | None = None) -> tuple[Left, Any]:
    """Run a lesson; return what it left, and its manager."""
    lesson.start()
    with manage() as manager:
        for k in range(steps):
            with mark(f"step {k}") if mark else nullcontext():
                lesson.step(k)
    return lesson.left(), manager


def measured(lesson: Any, manage: Manage, steps: int = STEPS) -> tuple[Left, Any, list[int]]:
    """Do as `taught`, and return how many bytes tensors held at most in each step, by PyTorch's allocator."""
    names, found = ops_of(lesson), []
    besides = frozenset({WRAPPED, torch.get_rng_state().nbytes})  # a generator's state is the host's, wherever it draws

    def run(mark: Mark) -> None:
        found.append(taught(lesson, manage, steps, mark))

    parts = profiled(run, names, besides)
    return *found[0], [parts[f"step {k}"].held for k in range(steps)]


class Names(TorchDispatchMode):
    """Which ops there are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def ops_of(lesson: Any, steps: int = 2) -> set[str]:
    """The names of all ops of a lesson."""
    with Names() as names:
        lesson.start()
        for k in range(steps):
            lesson.step(k)
    return names.seen


def trace_of(lesson: Any, iterations: int = 2, warmup: int = 1) -> Trace:
    """The trace of a lesson's step, as `record` has it."""

    def make() -> Callable[[], None]:
        lesson.start()
        count = iter(range(10**6))
        return lambda: lesson.step(next(count))

    return record(make, "cpu", iterations=iterations, warmup=warmup).trace


def least(trace: Trace, lists: bool = True) -> tuple[int, str]:
    """The most bytes that one op touches, and its name: no run is below. Calls on `lists` of tensors may be split."""
    size, name = trace.buffers.size.tolist(), trace.ops.name
    rows = zip(name, trace.ops.reads.tolist(), trace.ops.writes.tolist())
    most, op = max((_touched(size, op, *x), op) for op, *x in rows if lists or "_foreach" not in op)
    return most + scalars(trace), op


def scalars(trace: Trace) -> int:
    """The bytes of all tensors of one number, which stay where the host plays the device's part."""
    shapes, size = trace.buffers.shape or (), trace.buffers.size.tolist()
    return sum(size[b] for b, shape in enumerate(shapes) if shape is not None and prod(shape) == 1)


def _touched(size: list[int], op: str, reads: list[int], writes: list[int]) -> int:
    """The bytes that an op touches; what is written down as in place may run out of place, and then makes its sum."""
    return sum(size[b] for b in {*reads, *writes}) + (size[reads[0]] if op in WRITTEN_AS else 0)


def there(storage: torch.UntypedStorage | None) -> bool:
    """Whether a storage lives, and has memory."""
    if storage is None or not storage.nbytes():
        return False
    try:
        return bool(address(storage))
    except RuntimeError:  # it has an address that is none
        return False


class Resident(TorchDispatchMode):
    """Counts, at each op, the bytes of all storages that it ever saw and that have memory; entered before a manager.

    `peak` is the most since it was last set to 0; `values` that ops recomputed have no storage yet, and go unseen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0

    def see(self, x: Any) -> None:
        if isinstance(x, (list, tuple)):
            for y in x:
                self.see(y)
        elif isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.layout is torch.strided:
            storage = x.untyped_storage()
            self.seen[storage._cdata] = weakref.ref(storage)

    def now(self) -> int:
        """Bytes of what has memory."""
        storages = (ref() for ref in self.seen.values())
        return sum(s.nbytes() for s in storages if s is not None and there(s))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see([*args, *(kwargs or {}).values()])
        result = func(*args, **(kwargs or {}))
        self.see([result, *args])
        self.peak = max(self.peak, self.now())
        return result


OWNERS = (
    torch,
    torch._C,
    torch._C.StorageBase,
    torch._C.PyTorchFileWriter,
    torch.Tensor,
    torch._C.TensorBase,
    torch.UntypedStorage,
    torch.storage.TypedStorage,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.optim.Optimizer,
    torch.autograd,
    torch.autograd.graph,
    torch.cuda,
    torch.compiler,
    torch.random,
    torch.serialization,
    torch.multiprocessing.reductions,
    torch.utils.checkpoint,
    torch.utils.dlpack,
    torch._tensor_str,
    threading.Thread,
    import_module("copy"),
    import_module("pickle"),
    import_module("torch.optim.optimizer"),
    import_module("torch.utils._foreach_utils"),
)


@cache
def imported() -> None:
    """Let what is imported late be there."""
    with managed(1000, device="cpu", wait=True):
        torch.ones(3).sum().item()
    changed()


def world() -> dict[str, Any]:
    """All that a manager may change of the process while it is there: attributes, hooks, modes, threads."""
    imported()
    found: dict[str, Any] = {
        f"{getattr(owner, '__name__', owner)}.{name}": value
        for owner in OWNERS
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, (property, dict, list, bool, int))
    }
    sized = {name: (id(x), len(x)) if isinstance(x, (dict, list)) else x for name, x in found.items()}
    return sized | {"modes": changed(), "threads": {t.name for t in threading.enumerate()}}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is no longer as it was."""
    names = {*before, *after}
    return sorted(
        name for name in names if before.get(name, ...) is not after.get(name, ...) and not _alike(name, before, after)
    )


def _alike(name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    return name in before and name in after and bool(before[name] == after[name])


def storages() -> int:
    """How many storages Python knows of, garbage collected."""
    gc.collect()
    return sum(isinstance(x, (torch.UntypedStorage, torch.Tensor)) for x in gc.get_objects())


class Naive(TorchDispatchMode):
    """The simplest manager, to judge the judge by: nothing is on the device but what an op touches.

    With a fault: from op `at` on it `flips` a bit of results, `forgets` writes; or it `draws` a random number then.
    """

    def __init__(self, fault: str = "", at: int = 0) -> None:
        super().__init__()
        self.fault, self.at, self.count = fault, at, 0
        self.here: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.copies: dict[int, tuple[weakref.ref[torch.UntypedStorage], bytes]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        mine = [x.untyped_storage() for x in flat([*args, *(kwargs or {}).values()])]
        self.send({s._cdata for s in mine})
        for s in mine:
            self.bring(s)
        before = [bytes_of(s) for s in mine]
        result = func(*args, **(kwargs or {}))
        made = [x.untyped_storage() for x in flat([result])]
        self.here |= {s._cdata: weakref.ref(s) for s in (*mine, *made)}
        if self.count >= self.at and self.fault:
            self.err(func, mine, before, made)
        self.send(set())
        return result

    def err(self, func: Any, mine: list[Any], before: list[bytes], made: list[Any]) -> None:
        if self.fault == "flips" and made and there(made[0]) and str(func).startswith("aten.mul"):
            ctypes.memset(address(made[0]), bytes_of(made[0])[0] ^ 1, 1)
        if self.fault == "forgets" and str(func).startswith("aten.addcdiv_"):
            ctypes.memmove(address(mine[0]), before[0], len(before[0]))
        if self.fault == "draws" and self.count == self.at:
            torch.default_generator.manual_seed(5)

    def send(self, but: set[int]) -> None:
        for key in [key for key in self.here if key not in but]:
            s = self.here.pop(key)()
            if s is not None and there(s):
                self.copies[key] = weakref.ref(s), bytes_of(s)
                s._swap_data_ptr_(torch._C._construct_storage_from_data_pointer(0, s.device, s.nbytes()))

    def bring(self, s: torch.UntypedStorage) -> None:
        ref, copy = self.copies.pop(s._cdata, (None, b""))
        if ref is not None and ref() is not None:
            s._swap_data_ptr_(torch.UntypedStorage(len(copy)))
            ctypes.memmove(address(s), copy, len(copy))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for ref, _ in [*self.copies.values()]:
            if (s := ref()) is not None:
                self.bring(s)


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    """What a storage has, if it has memory."""
    return ctypes.string_at(address(storage), storage.nbytes()) if there(storage) else b""


def flat(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among nested values."""
    found = []
    for x in values:
        if isinstance(x, (list, tuple)):
            found += flat(x)
        elif isinstance(x, torch.Tensor):
            found.append(x)
    return found
