"""Known values, followed op by op.

An op whose operands are known is called again on the host, with theirs; what comes out is known of its results. Of
floats nothing may be known, as they are learned or too many: they count as finite and positive where an op makes other
types of them, as `torch.isfinite(loss)` or `grads > 0.1`; results of that are marked as supposed (`Doubt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from gpumem.torch.internals import hidden_from_modes, torch
from gpumem.torch.step.ops import Call, results
from gpumem.torch.values.known import HOST, META, Doubt, Host, Known, beside, covers, fits, is_number, is_small, unit
from gpumem.torch.values.known_values import KnownValues
from gpumem.torch.values.ops import PICKS, SIZE, SUMS, is_elementwise

# Unknown floats of a call are supposed to be 1 + k * STEP, where k counts its operands' storages: small for these
# to stay near 1, large enough for the first 193, up to 4, to differ in bfloat16 (7 bits of fraction).
STEP = 1 / 64
FAILS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)  # what a call on the host may raise
_GENERATOR = torch.Generator  # another class stands in for it while a step is captured
FINITE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_  # a scaler asks whether gradients are not


def follow(values: KnownValues, call: Call) -> None:
    """Update what is known after an op has run."""
    kind = call.kind
    fresh = [tensor for tensor in results(call.result, META) if not any(tensor is written for written in call.written)]
    outs = [*fresh, *call.written]
    values.made_by(call.name, outs)
    if call.func.overloadpacket is FINITE:  # gradients are taken to be finite, so it answers that they are
        values.end(call.args[0])
        values.suppose(call.args[1])
    elif not kind.repeatable:  # a user's op, which may write what its schema does not say
        values.end([*call.operands, *fresh])
    elif kind.resizes or (all(is_number(tensor.dtype) for tensor in outs) and not all(map(values.sure, call.read))):
        values.end(call.written)
    elif outs:
        try:
            with hidden_from_modes():
                HostCall(values, call, fresh).run()
        except FAILS:
            values.end(call.written)


class HostCall:
    """Repeats a call on the host with what is known of its operands.

    Parameters
    ----------
    values : KnownValues
        What is known of its operands, and becomes known of its results.
    call : Call
        That has run.
    fresh : list of Tensor
        What it made, but for what it wrote.
    """

    def __init__(self, values: KnownValues, call: Call, fresh: list[torch.Tensor]) -> None:
        self.values, self.call, self.fresh = values, call, fresh
        self.doubt = max(map(values.doubt, call.read), default=Doubt.NONE)
        self.numbers = self._numbers()
        self.stand_ins: dict[int, Host] = {}  # operands on the host, by those that they stand for

    def run(self) -> None:
        """Compute all elements, or where they are too many one for all; raise one of `FAILS` where neither works."""
        if all(map(fits, self.call.operands)) and all(map(is_small, (*self.fresh, *self.call.written))):
            self._whole()
        elif self.call.func.overloadpacket in PICKS:
            table = self.call.operands[0]
            self.values.keep_each(self.fresh[0], _known(self.values.each(table)), self.values.doubt(table))
        elif not self.call.kind.rng and (is_elementwise(self.call.func) or self.call.func.overloadpacket in SUMS):
            self._of_one()
        else:
            raise ValueError("too large")

    def _numbers(self) -> dict[int, float]:
        """The number that each unknown operand is supposed to be; the same for operands of one storage."""
        known, place = dict[int, float](), dict[int, float]()
        for operand in self.call.operands:
            if is_number(operand.dtype):
                known[id(operand)] = place.setdefault(operand.untyped_storage()._cdata, 1 + STEP * len(place))
            elif (
                self.values.known(operand) is None
                and operand.numel()
                and any(operand is read for read in self.call.read)
            ):
                raise ValueError("whole numbers that are not known")
            else:
                known[id(operand)] = 0
        return known

    def _whole(self) -> None:
        """Compute all elements."""
        keys = [made.untyped_storage()._cdata for made in self.call.operands]

        def host(tensor: torch.Tensor) -> Host:
            if any(tensor is computed for computed in self.call.written):
                alone = keys.count(tensor.untyped_storage()._cdata) == 1  # and not copied onto itself
                return self._writable(tensor, overwritten=self.call.kind.overwrites and alone and covers(tensor))
            known = self.values.read(tensor)
            return (
                torch.full((), self.numbers[id(tensor)], dtype=tensor.dtype).expand(tensor.size())
                if known is None
                else known
            )

        for made, computed in zip(self.fresh, self._called(host), strict=True):
            self.values.keep(made, computed, self.doubt)

    def _of_one(self) -> None:
        """Compute one element of results that are one number over and over."""
        sums = self.call.func.overloadpacket in SUMS

        def host(tensor: torch.Tensor) -> Host:
            each = self.values.each(tensor)
            if (
                each is None
                and self.values.known(tensor) is not None
                and any(tensor is computed for computed in self.call.read)
            ):
                raise ValueError("elements differ")
            return unit(tensor, torch.full((), self.numbers[id(tensor)], dtype=tensor.dtype) if each is None else each)

        for made, computed in zip(self.fresh, self._called(host, alone=True), strict=True):
            times = self.call.operands[0].numel() // max(made.numel(), 1) if sums else 1
            self.values.keep_each(made, computed.reshape(-1)[0] * times, self.doubt)
        for made in self.call.written:
            self.values.keep_each(made, self.stand_ins[id(made)].reshape(()), self.doubt)

    def _called(self, host: Callable[[torch.Tensor], Host], *, alone: bool = False) -> list[Host]:
        """What the op makes on the host; where one element stands `alone` for all, so do sizes that it is given."""

        def mapped_once(tensor: torch.Tensor) -> Host:
            if id(tensor) not in self.stand_ins:
                self.stand_ins[id(tensor)] = host(tensor)
            return self.stand_ins[id(tensor)]

        call, given = self.call, self.call.given
        if alone and SIZE in given:
            given[SIZE] = [1] * len(given[SIZE])
        kwargs = {name: mapped(value, mapped_once) for name, value in given.items() if name != "pin_memory"}
        args = [kwargs.pop(name) for name in [*given][: len(call.args)]]
        with as_device() if call.kind.rng and kwargs.get("generator") is None else nullcontext():
            known = call.func(*args, **kwargs)
        return [
            result
            for result in results(known, None)
            if not any(result is operand for operand in self.stand_ins.values())
        ]

    def _writable(self, tensor: torch.Tensor, *, overwritten: bool) -> Host:
        """Return a tensor whose bytes an op on the host may write, and which are known from then on."""
        cell, known = self.values.storages.known(tensor), self.values.known(tensor)
        if cell is None or (known is None and not overwritten):
            raise ValueError("what is written in part is not known")
        if known is None or known.bytes is None:
            made = self.values.allocate(cell)
            if known is not None and known.each is not None:
                torch.empty(0, dtype=known.each.dtype).set_(_known(made)).fill_(known.each)
            known = Known(made, None, self.doubt if known is None else known.doubt)
        known.doubt = self.doubt if overwritten else max(self.doubt, known.doubt)
        cell.values = known
        return beside(tensor, _known(known.bytes))


def _known(value: Any) -> Any:
    """A value that is not None; ValueError else, which ends the computation."""
    if value is None:
        raise ValueError("not known, or too large to be kept")
    return value


@contextmanager
def as_device() -> Iterator[None]:
    """Draw random numbers from the device's generator, and leave the host's as it was."""
    here, device = torch.default_generator, torch.cuda.default_generators[0]
    before = _GENERATOR.get_state(here)
    _GENERATOR.set_state(here, _GENERATOR.get_state(device))
    try:
        yield
    finally:
        _GENERATOR.set_state(device, _GENERATOR.get_state(here))
        _GENERATOR.set_state(here, before)


def mapped(value: Any, host: Callable[[torch.Tensor], Host]) -> Any:
    """A (nested) argument with tensors of the host in the place of those on `meta`."""
    if isinstance(value, torch.Tensor):
        return host(value) if value.is_meta else value
    if isinstance(value, torch.device):
        return HOST
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(item, host) for item in value])
    return value
