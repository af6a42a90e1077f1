"""Answers to a program that asks for values of tensors without any: what is known, else what is assumed and noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumem.torch.internals import torch
from gpumem.torch.step.ops import Call
from gpumem.torch.values.assumed import Assumptions
from gpumem.torch.values.host_call import follow
from gpumem.torch.values.known import HOST, is_number
from gpumem.torch.values.known_values import KnownValues
from gpumem.torch.values.sizes import Sizes, depends

aten = torch.ops.aten
NUMBER = 1.0  # a float of which nothing is known is taken for this: finite and positive, as a loss is; not tuned


class Answers:
    """Answers questions about values.

    Parameters
    ----------
    values : KnownValues
    assumptions : Assumptions
        Where answers are written down that do not follow from the program alone.
    place : callable
        Says where the program asks.
    """

    def __init__(self, values: KnownValues, assumptions: Assumptions, place: Callable[[], str]) -> None:
        self.values, self.assumptions, self.place = values, assumptions, place
        self.sizes = Sizes(values, assumptions, place)

    def answer(self, call: Call) -> Any:
        """Return the result of an op that gives values to the host, or whose size depends on values; else None."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if func is aten._local_scalar_dense.default:
            return self._on_host(args[0], f"the value of {self.values.source(args[0]) or 'a tensor'}").item()
        if func is aten.equal.default:
            return self._equal(args[0], args[1])
        if func is aten._to_copy.default and kwargs.get("device") == HOST:
            dtype = kwargs.get("dtype") or args[0].dtype
            return self._on_host(args[0], "a copy on the host").to(dtype, copy=True).contiguous()
        if func is aten.copy_.default and args[0].device == HOST:
            return args[0].copy_(self._on_host(args[1], "a copy on the host"))
        return self.sizes.made(call) if depends(call) else None

    def follow(self, call: Call) -> None:
        """Note what is known once an op has run."""
        follow(self.values, call)
        self.sizes.choose(call)

    def _on_host(self, tensor: torch.Tensor, asked: str) -> torch.Tensor:
        """Return a tensor of the host as large as `tensor`: its values, or what is assumed of them."""
        value = self.values.read(tensor)
        if value is not None and self.values.sure(tensor):
            return value
        if value is None:
            value = torch.full((), NUMBER if is_number(tensor.dtype) else 0, dtype=tensor.dtype, device=HOST).expand(
                tensor.size()
            )
        answer = (
            f"{value.reshape(-1)[0].item()}" + (" each" if tensor.numel() > 1 else "") if tensor.numel() else "nothing"
        )
        self.assumptions.note(self.place(), asked, answer)
        return value

    def _equal(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Whether two tensors are equal; where one is not known, whether they are the same tensor."""
        if first.size() != second.size():
            return False
        values, others = self.values.read(first), self.values.read(second)
        known = values is not None and others is not None
        same = bool(torch.equal(values, others)) if known else _is_same(first, second)
        if not (known and self.values.sure(first) and self.values.sure(second)) and not _is_same(first, second):
            self.assumptions.note(self.place(), "whether two tensors are equal", same)
        return same


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    alike = (first.storage_offset(), first.size(), first.stride()) == (
        second.storage_offset(),
        second.size(),
        second.stride(),
    )
    return alike and first.untyped_storage()._cdata == second.untyped_storage()._cdata
