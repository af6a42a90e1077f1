"""Where a run's mode is off and ops run all the same: nobody would bring back what they touch, or see it written.

Within an op of somebody's own whose kernel is Python, which may use tensors that are no arguments of it. Where PyTorch
switches all modes off, as it does to print a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpumem.torch.internals import BACKENDS, DispatchKeySet, TorchDispatchMode, no_modes, python_kernels
from gpumem.torch.internals.redirected import WITHOUT_MODES, redirected
from gpumem.torch.run.memory import Memory
from gpumem.torch.step.ops import OURS, call_of, tensors
from gpumem.torch.step.storages import Cell


def runs_python(func: Any) -> bool:
    """Whether an op was given a kernel in Python, by `torch.library`."""
    space, _, name = func._schema.name.partition("::")
    if space in OURS:
        return False
    return any(key.startswith((f"{space}/{name}/", f"{space}/{name}.")) for key in python_kernels())


class Inside(TorchDispatchMode):
    """Brings what ops within an op touch; nothing of it is recorded, or follows a plan.

    `held` are the cells of the op itself, which may not leave meanwhile.
    """

    def __init__(self, memory: Memory, held: Sequence[Cell]) -> None:
        super().__init__()
        self.memory, self.held = memory, held

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel of an op under this mode, past all that comes before kernels."""
        with self:  # whichever kernel serves for the device, also one that was given for all
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
        result = Inside(memory, cells).run(func, *args, **kwargs) if runs_python(func) else func(*args, **kwargs)
        for x in tensors(result if isinstance(result, (list, tuple)) else (result,), memory.device):
            memory.made(x)
        if call.kind.resizes:
            memory.resized(call.written)
        memory.note()
        return result


@contextmanager
def without_modes(memory: Memory) -> Iterator[None]:
    """Where modes are switched off, by others than ourselves, let what ops touch be brought."""

    @contextmanager
    def disabled() -> Iterator[Any]:
        with no_modes() as modes, Inside(memory, ()):
            yield modes

    with redirected([(WITHOUT_MODES, disabled)]):
        yield
