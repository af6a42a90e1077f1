"""A call's arguments as the text that `gpumem.trace.signature` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gpumem.torch.internals import torch
from gpumem.trace.signature import Operand, contiguous


def signature_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the signature of a call.

    >>> signature_of([torch.empty(8, 4), torch.empty(10, 4).t(), [1, 1], None], {"beta": 0.5})
    'float32[8,4] float32[4,10]@1,4 (1 1) - beta=0.5'
    """
    words = [_word(value) for value in args]
    return " ".join(words + [f"{name}={_word(value)}" for name, value in kwargs.items()])


def _word(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided and not value.is_nested and not torch.nn.parameter.is_lazy(value)
        return _tensor(value.dtype, *((tuple(value.shape), tuple(value.stride())) if plain else ((), None)))
    if isinstance(value, (list, tuple)):
        return f"({' '.join(map(_word, value))})"
    if value is None:
        return "-"
    if isinstance(value, (bool, int, float)):
        return str(int(value)) if isinstance(value, bool) else repr(value)
    return str(value).removeprefix("torch.").replace(" ", "") or "-"


@cache  # a step calls its ops with the same few tensors, over and over
def _tensor(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> str:
    plain = strides is None or contiguous(shape, strides)
    return str(Operand(str(dtype).removeprefix("torch."), shape, None if plain else strides))
