"""Ops that run while the run's own mode is off: their operands are brought as well, and their writes are seen.

There are two such places. Within a user's op whose kernel is Python, which may use tensors that are no arguments of it.
And where PyTorch switches all modes off, as it does to print a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpumem.torch.internals import BACKENDS, DispatchKeySet, TorchDispatchMode, no_modes, python_kernels
from gpumem.torch.internals.redirected import WITHOUT_MODES, redirected
from gpumem.torch.run.memory import Memory
from gpumem.torch.step.ops import OWN_NAMESPACES, call_of, results
from gpumem.torch.step.storages import Cell


def runs_python(func: Any) -> bool:
    """Whether an op was given a kernel in Python, by `torch.library`."""
    space, _, name = func._schema.name.partition("::")
    if space in OWN_NAMESPACES:
        return False
    return any(key.startswith((f"{space}/{name}/", f"{space}/{name}.")) for key in python_kernels())


class NestedOpMode(TorchDispatchMode):
    """Brings what nested ops touch; they are neither recorded nor counted as ops of a plan.

    `held` are the cells of the outer op, which must not be evicted meanwhile.
    """

    def __init__(self, memory: Memory, held: Sequence[Cell]) -> None:
        super().__init__()
        self.memory, self.held = memory, held

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel of an op under this mode, past autograd and all else that comes before kernels."""
        with self:  # by the device's key: whichever kernel serves for it, also one that was given for all devices
            return func.redispatch(DispatchKeySet(BACKENDS[self.memory.device]), *args, **kwargs)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        memory, kwargs = self.memory, kwargs or {}
        call = call_of(func, args, kwargs, memory.device)
        if call is None:
            return func(*args, **kwargs)
        cells, written = [*dict.fromkeys([*self.held, *memory.of(call.operands)])], memory.of(call.written)
        memory.recompute_dependents(written)
        memory.ensure_resident(cells, 0, f"{call.kind.name}, within another op,")
        memory.wrote(written)
        result = NestedOpMode(memory, cells).run(func, *args, **kwargs) if runs_python(func) else func(*args, **kwargs)
        for tensor in results(result, memory.device):
            memory.made(tensor)
        if call.kind.resizes:
            memory.resized(call.written)
        memory.note()
        return result


@contextmanager
def without_modes(memory: Memory) -> Iterator[None]:
    """Bring what ops touch also where PyTorch or the user's code switches all modes off."""

    @contextmanager
    def disabled() -> Iterator[Any]:
        with no_modes() as modes, NestedOpMode(memory, ()):
            yield modes

    with redirected([(WITHOUT_MODES, disabled)]):
        yield
