"""How many bytes a call will make, asked of the `meta` device; once for each shape of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpumem.torch._torch import torch
from gpumem.torch.ops import amount, kind_of, results, tensors
from gpumem.torch.run.cells import parts
from gpumem.torch.run.memory import quietly


class Predicted:
    """What calls made, or will make, by their arguments' shapes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.fresh: dict[Any, int] = {}
        self.last: Any = None

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the bytes of new storages that a call will make, as far as can be known before."""
        self.last = shape = (func, _shape(args), _shape([*kwargs.items()]))
        found = self.fresh.get(shape)
        if found is None:
            found = self.fresh[shape] = self._ask(func, args, kwargs)
        return found

    def learn(self, made: int) -> None:
        """Note what a call that was asked for has made: a workspace may be more than PyTorch's formulas know."""
        if self.last is not None and made > self.fresh[self.last]:
            self.fresh[self.last] = made
        self.last = None

    def _ask(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        made: dict[int, torch.Tensor] = {}
        if kind_of(func).blocks:
            return 0
        operands = tensors((*args, *kwargs.values()), self.device)
        try:
            with quietly():
                metas = _metas(args, made, self.device)
                named = {name: _metas(x, made, self.device) for name, x in kwargs.items()}
                if "device" in named:
                    named["device"] = "meta"
                before = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in made.values()}
                result = func(*metas, **named)
        except Exception:  # whatever it is: an op that needs values, or has no formula for its shape
            return amount([y for x in operands for y in ([x] if x.layout is torch.strided else parts(x))])
        after = {
            s._cdata: s.nbytes()
            for x in results(result, "meta")
            if x.layout is torch.strided and (s := x.untyped_storage())
        }
        return sum(max(size - before.get(key, 0), 0) for key, size in after.items())  # some operands grow


def _shape(x: Any) -> Any:
    """What there is to see of an argument without its values."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.dtype, x.stride() if x.layout is torch.strided else None
    if isinstance(x, (list, tuple)):
        return tuple(map(_shape, x))
    if isinstance(x, torch.Generator):
        return None
    try:
        hash(x)
    except TypeError:
        return repr(x)
    return x


def _metas(x: Any, made: dict[int, torch.Tensor], device: str) -> Any:
    """An argument without bytes; one for each tensor."""
    if isinstance(x, torch.Tensor):
        if id(x) not in made:
            made[id(x)] = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
        return made[id(x)]
    if isinstance(x, (list, tuple)):
        return type(x)(_metas(y, made, device) for y in x)
    if isinstance(x, torch.Generator):
        return None
    return x
