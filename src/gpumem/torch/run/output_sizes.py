"""The bytes that a call will make, predicted by running it on the `meta` device, once for each shape of arguments."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from gpumem.runtime.residency.observing import tolerable
from gpumem.torch.internals import hidden_from_modes, torch
from gpumem.torch.step.ops import OWN_NAMESPACES, amount, kind_of, mapped, results, tensors
from gpumem.torch.step.storages import parts

PLAIN = {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
# Calls that are remembered, the most recent: not tuned; many nets have some thousand shapes of calls.
KNOWN = 4096


class OutputSizePredictor:
    """Predicts the bytes of calls' new storages from the shapes of their arguments, and learns from those that ran."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.fresh: OrderedDict[Any, int] = OrderedDict()  # by shapes, the least recently used first
        self.last: Any = None  # the shapes of the call that was predicted last

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the bytes of new storages that a call will make, as far as can be predicted."""
        self.last = None
        if not kind_of(func).makes_tensors:  # as optimizers' calls on lists, whose arguments take long to look at
            return 0
        try:
            return self._remembered(func, args, kwargs)
        except Exception as error:  # an argument that cannot be looked at
            if not tolerable(error):
                raise
            return self._operands(args, kwargs)

    def _remembered(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """The prediction for a call, asked for once for each shape."""
        shape = (func, _shape(args), _shape([*kwargs.items()]))
        size = self.fresh.get(shape)
        if size is None:
            size = self.fresh[shape] = self._ask(func, args, kwargs)
            if len(self.fresh) > KNOWN:
                self.fresh.popitem(last=False)
        else:
            self.fresh.move_to_end(shape)
        self.last = shape
        return size

    def learn(self, made: int) -> None:
        """Correct the last prediction by what the call made: a workspace may be more than PyTorch's formulas know."""
        if self.last is not None and made > self.fresh[self.last]:
            self.fresh[self.last] = made
        self.last = None

    def _ask(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Run a call on the `meta` device, and sum the new storages of its results."""
        made: dict[int, torch.Tensor] = {}
        kind = kind_of(func)
        target = kwargs.get("device")
        if target is not None and torch.device(target).type != self.device:
            return 0
        if (shape := _sampled(kind.name, args)) is not None:
            return math.prod(shape) * int(args[0].itemsize)
        if func.namespace not in OWN_NAMESPACES:  # a user's own code must not run more often than it is called
            return self._operands(args, kwargs)
        try:
            with hidden_from_modes():
                meta = partial(_meta, made=made)
                metas, named = mapped(args, meta), {name: mapped(x, meta) for name, x in kwargs.items()}
                if "device" in named:
                    named["device"] = "meta"
                before = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in made.values()}
                result = func(*metas, **named)
        except Exception:  # whatever it is: an op that needs values, or has no formula for its shape
            return self._operands(args, kwargs)
        after = {
            storage._cdata: storage.nbytes()
            for tensor in results(result, "meta")
            if tensor.layout is torch.strided and (storage := tensor.untyped_storage())
        }
        return sum(max(size - before.get(key, 0), 0) for key, size in after.items())  # some operands grow

    def _operands(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """A guess: the bytes of its operands."""
        try:
            operands = tensors((*args, *kwargs.values()), self.device)
            strided = ([operand] if operand.layout is torch.strided else parts(operand) for operand in operands)
            return amount([*chain.from_iterable(strided)])
        except Exception as error:
            if not tolerable(error):
                raise
            return 0


def _sampled(name: str, args: Sequence[Any]) -> Sequence[int] | None:
    """The shape of the result of an op that resamples an image; None of any other op.

    PyTorch's own answer is a program in Python here, of up to 60 ms for each new shape (torch 2.13); all other ops are
    asked in less than 7.
    """
    if name in ("grid_sampler_2d.default", "grid_sampler_3d.default"):
        return (*args[0].size()[:2], *args[1].size()[1:-1])
    if name.lstrip("_").startswith("upsample_") and name.endswith(".default") and "backward" not in name:
        return (*args[0].size()[:2], *args[1])
    return None


def _shape(value: Any) -> Any:
    """A key of an argument without its values, different wherever the shapes of results may differ.

    The value of a float never decides a shape; its type does, as results of `1` and `1.0` have other dtypes.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            return value.layout, value.dtype, tuple(part.size() for part in parts(value)) or value.numel()
        return value.size(), value.dtype, value.stride()  # a parameter that is not there yet has no `shape`
    if isinstance(value, (list, tuple)):
        return tuple(map(_shape, value))
    if kind in PLAIN:
        return kind, value
    # an object would live as long as it is remembered
    return (kind, value.nbytes()) if isinstance(value, torch.UntypedStorage) else kind


def _meta(value: Any, made: dict[int, torch.Tensor]) -> Any:
    """An argument on the `meta` device; one for each tensor, so that a tensor given twice stays one."""
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            made[id(value)] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return made[id(value)]
    return None if isinstance(value, torch.Generator) else value
