"""The dispatch mode that captures and runs have in common: it finds the calls that are ops of the device."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from gpumem.torch.internals import COMPOSITE, TorchDispatchMode, mode_stack, pop_mode, push_mode, torch
from gpumem.torch.step.foreach_chunks import joined, pieces
from gpumem.torch.step.ops import Call, Kind, call_of, kind_of
from gpumem.torch.step.refusals import check_types

# Composite ops that are not taken apart: under a mode their parts would take another algorithm, with other bits.
WHOLE = frozenset({"linalg_svdvals.default", "linalg_eigvalsh.default"})


class OpMode(TorchDispatchMode):
    """Passes each op of a device to `op`, one at a time, and any other call to `other`.

    `chunk`: calls on lists of tensors are split into ops that touch at most so many bytes each; None leaves them whole.
    `alone`: the name of the mode in the error where another one wants the whole process as well.
    """

    alone = ""

    def __init__(self, device: str, chunk: int | None) -> None:
        super().__init__()
        self.device, self.chunk = device, chunk
        self.lock = threading.RLock()
        self.off = False  # True in a process that was forked from the one that has the mode

    def __exit__(self, *error: Any) -> None:
        """Leave, also where modes that were entered later have not been left, or where it was left already."""
        stack = mode_stack()
        if self not in stack:
            return
        above = [pop_mode() for _ in stack[stack.index(self) + 1 :]]
        super().__exit__(*error)
        for mode in reversed(above):
            push_mode(mode)

    def unmanaged(self) -> None:
        """Leave for good, in a forked process; where it cannot be left, `off` lets calls run as they are."""
        self.off = True
        self.__exit__(None, None, None)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it; the wrapper that would see to that takes a microsecond an op

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.off:
            return func(*args, **kwargs)
        kind = kind_of(func)
        if types and kind.may_be_op:  # not for questions about sizes: they may come from C++ that cannot throw
            check_types(func, types)
        if kind.composite and torch.is_inference_mode_enabled() and kind.name not in WHOLE:
            # Autograd, which takes composite ops apart before a mode sees them, is off in inference mode.
            with self:  # by the kernel that runs without a mode: `decompose` prefers a formula in Python, of other bits
                return func._op_dk(COMPOSITE, *args, **kwargs)
        with self.lock:
            if kind.works_row_by_row and self.chunk and (split := pieces(func, args, kwargs, self.chunk)):
                return joined([self._call(kind, func, *piece) for piece in split])
            return self._call(kind, func, args, kwargs)

    def _call(self, kind: Kind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = call_of(func, args, kwargs, self.device, kind)
        return self.other(kind, func, args, kwargs) if call is None else self.op(call)

    def op(self, call: Call) -> Any:
        """Run an op of the device; return what it returns."""
        raise NotImplementedError

    def other(self, kind: Kind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run what is no op of the device, as a view."""
        return func(*args, **kwargs)
