"""How many bytes a call will make, asked of the `meta` device; once for each shape of its arguments."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpumem.runtime.residency.observing import tolerable
from gpumem.torch.internals import hidden_from_modes, torch
from gpumem.torch.step.ops import OWN_NAMESPACES, amount, kind_of, mapped, results, tensors
from gpumem.torch.step.storages import parts

PLAIN = {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
KNOWN = 4096  # calls that are remembered, the latest; not tuned: some thousand shapes are those of many nets


class OutputSizePredictor:
    """What calls made, or will make, by their arguments' shapes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.fresh: OrderedDict[Any, int] = OrderedDict()  # what was asked for longest ago first
        self.last: Any = None

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the bytes of new storages that a call will make, as far as can be known before."""
        self.last = None
        if not kind_of(func).makes_tensors:  # as optimizers' calls on lists, whose arguments take long to look at
            return 0
        try:
            return self._found(func, args, kwargs)
        except Exception as error:  # an argument that cannot be looked at
            if not tolerable(error):
                raise
            return self._operands(args, kwargs)

    def _found(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        shape = (func, _shape(args), _shape([*kwargs.items()]))
        found = self.fresh.get(shape)
        if found is None:
            found = self.fresh[shape] = self._ask(func, args, kwargs)
            if len(self.fresh) > KNOWN:
                self.fresh.popitem(last=False)
        else:
            self.fresh.move_to_end(shape)
        self.last = shape
        return found

    def learn(self, made: int) -> None:
        """Note what a call that was asked for has made: a workspace may be more than PyTorch's formulas know."""
        if self.last is not None and made > self.fresh[self.last]:
            self.fresh[self.last] = made
        self.last = None

    def _ask(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        made: dict[int, torch.Tensor] = {}
        kind = kind_of(func)
        elsewhere = kwargs.get("device")
        if elsewhere is not None and torch.device(elsewhere).type != self.device:
            return 0
        if (shape := _sampled(kind.name, args)) is not None:
            return math.prod(shape) * int(args[0].itemsize)
        if func.namespace not in OWN_NAMESPACES:  # a call of somebody's own code is made as often as it is asked for
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
            s._cdata: s.nbytes()
            for x in results(result, "meta")
            if x.layout is torch.strided and (s := x.untyped_storage())
        }
        return sum(max(size - before.get(key, 0), 0) for key, size in after.items())  # some operands grow

    def _operands(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """A guess: as much as it is given."""
        try:
            operands = tensors((*args, *kwargs.values()), self.device)
            return amount(
                [y for operand in operands for y in ([operand] if operand.layout is torch.strided else parts(operand))]
            )
        except Exception as error:
            if not tolerable(error):
                raise
            return 0


def _sampled(name: str, args: Sequence[Any]) -> Sequence[int] | None:
    """The shape that an image has which is sampled anew; None where another op is asked about.

    PyTorch's own answer is a program in Python here, of up to 60 ms for each new shape (torch 2.13); all other ops are
    asked in less than 7.
    """
    if name in ("grid_sampler_2d.default", "grid_sampler_3d.default"):
        return (*args[0].size()[:2], *args[1].size()[1:-1])
    if name.lstrip("_").startswith("upsample_") and name.endswith(".default") and "backward" not in name:
        return (*args[0].size()[:2], *args[1])
    return None


def _shape(value: Any) -> Any:
    """What there is to see of an argument without its values: of two that differ, the shapes of results may differ.

    A number with a fraction never decides a shape; its type does, as `1` and `1.0` are of other ones.
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
    """An argument without bytes; one for each tensor."""
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            made[id(value)] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return made[id(value)]
    return None if isinstance(value, torch.Generator) else value
