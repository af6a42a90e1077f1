"""The account of what is known, followed op by op.

An op whose operands are known is called again on the host, with theirs; what comes out is known of its results. What is
written by something unknown is known no longer, whatever the view. A tensor of numbers of which nothing is known
(learned or large) counts as a finite positive number where something else than numbers is made of it, as by
`torch.isfinite(loss)` or `grads > 0.1`; what follows is marked as assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import finalize

from gpumem.torch.internals import quietly, torch
from gpumem.torch.step.ops import Call, results, tensors
from gpumem.torch.step.storages import Cell, Storages
from gpumem.torch.values.known import ALL, Known, beside, covers, each_of, fits, is_number, is_small, unit
from gpumem.torch.values.ops import PICKS, SIZE, SUMS, is_elementwise

META = "meta"
FINITE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_  # a scaler asks whether gradients are not
HOST = torch.device("cpu")
STEP = 1 / 64  # between the numbers that unknown tensors of one call are taken for: no two are equal, also in bfloat16
FAILS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)  # what a call on the host may raise
_GENERATOR = torch.Generator  # another class stands in for it while a step is captured
Host: TypeAlias = torch.Tensor


class KnownValues:
    """What is known of the storages of a capture.

    Parameters
    ----------
    storages : Storages
        Whose cells keep it, as long as their storages live.
    """

    def __init__(self, storages: Storages) -> None:
        self.storages, self.held = storages, 0
        self._drawn: torch.Tensor | None = None  # the state of the device's generator

    # what is known

    def known(self, x: torch.Tensor) -> Known | None:
        """What is known of the storage of a tensor; nothing of one that is learned."""
        if x.requires_grad or x.layout is not torch.strided:
            return None
        cell = self.storages.known(x)
        known: Known | None = None if cell is None else cell.values
        return known

    def sure(self, x: torch.Tensor) -> bool:
        """Whether the elements of a tensor are known, and not assumed."""
        if not x.numel():
            return True
        known = self.known(x)
        return known is not None and not known.assumed

    def differs(self, x: torch.Tensor) -> bool:
        """Whether the elements of a tensor are known one by one."""
        known = self.known(x)
        return known is not None and known.bytes is not None

    def read(self, x: torch.Tensor) -> Host | None:
        """Return a tensor as it is on the host, expanded where it is one number over and over; None of an unknown."""
        with quietly():
            return self._read(x, self.known(x))

    def _read(self, x: torch.Tensor, known: Known | None) -> Host | None:
        if known is not None and known.bytes is not None:
            return beside(x, known.bytes)
        if not x.numel():
            return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=HOST)
        each = self._each(x, known)
        return None if each is None else each.to(x.dtype).expand(x.size())

    def _each(self, x: torch.Tensor, known: Known | None) -> Host | None:
        """The number that all elements are."""
        if known is None:
            return None
        if known.each is not None:
            return known.each if known.each.dtype == x.dtype else None
        assert known.bytes is not None
        return each_of(beside(x, known.bytes))

    def given(self, x: torch.Tensor, host: Host, *, assumed: bool = False) -> None:
        """Note what a tensor is, that has a storage of its own; too much of it is forgotten."""
        with quietly():
            self._keep(x, host.detach(), assumed)

    def _keep(self, x: torch.Tensor, host: Host, assumed: bool) -> None:
        cells = self.storages.made(x)
        if not cells or host.dtype != x.dtype or host.size() != x.size():
            return
        if not is_small(x):
            each = each_of(host) if covers(x) and min(host.stride(), default=0) == 0 else None
            cells[0].values = None if each is None else Known(None, each, assumed)
        elif (made := self._room(cells[0])) is not None:
            beside(x, made).copy_(host)
            cells[0].values = Known(made, None, assumed)

    def _room(self, cell: Cell) -> torch.UntypedStorage | None:
        """A storage of the host, of zeros and as large as another one; None where all have too much by now."""
        if self.held + cell.size > ALL:
            cell.values = None
            return None
        made = torch.zeros(cell.size, dtype=torch.uint8, device=HOST).untyped_storage()
        self.held += cell.size
        finalize(made, self._gone, cell.size).atexit = False
        return made

    def _gone(self, size: int) -> None:
        self.held -= size

    def end(self, written: Sequence[torch.Tensor]) -> None:
        """Know no longer what has been written."""
        for x in written:
            if x.layout is torch.strided and (cell := self.storages.known(x)) is not None:
                cell.values = None

    def assume(self, x: torch.Tensor) -> None:
        """Take what is known of a tensor for assumed from now on."""
        if (known := self.known(x)) is not None:
            known.assumed = True

    # op by op

    def follow(self, call: Call) -> None:
        """Note what an op that has run made of what it read."""
        kind = call.kind
        fresh = [x for x in results(call.result, META) if not any(x is y for y in call.written)]
        outs = [*fresh, *call.written]
        self._made_by(call.name, outs)
        if call.func.overloadpacket is FINITE:  # of gradients that are taken to be finite it says so
            self.end(call.args[0])
            self.assume(call.args[1])
        elif not kind.again:  # somebody else's op, which may write what it does not say
            self.end([*call.operands, *fresh])
        elif kind.resizes or (all(is_number(x.dtype) for x in outs) and not all(map(self.sure, call.read))):
            self.end(call.written)
        elif outs:
            with quietly():
                if not self._computed(call, fresh):
                    self.end(call.written)

    def _made_by(self, name: str, outs: list[torch.Tensor]) -> None:
        """Note what wrote a single element, which the host may ask for."""
        for x in outs:
            if x.numel() == 1 and (cell := self.storages.known(x)) is not None:
                cell.source = name

    def source(self, x: torch.Tensor) -> str:
        """The op that wrote the storage of a tensor, where that was noted."""
        cell = self.storages.known(x)
        return "" if cell is None else cell.source

    def _computed(self, call: Call, fresh: list[torch.Tensor]) -> bool:
        """Call the op on the host; return whether that could be done."""
        assumed = not all(map(self.sure, call.read))
        try:
            if all(map(fits, call.operands)) and all(map(is_small, (*fresh, *call.written))):
                return self._whole(call, fresh, assumed)
            return not call.kind.rng and self._each_alone(call, fresh, assumed)
        except FAILS:
            return False

    def _whole(self, call: Call, fresh: list[torch.Tensor], assumed: bool) -> bool:
        """Compute all elements."""
        numbers = self._numbers(call)
        keys = [x.untyped_storage()._cdata for x in call.operands]

        def host(x: torch.Tensor) -> Host:
            if any(x is y for y in call.written):
                alone = keys.count(x.untyped_storage()._cdata) == 1  # and not copied onto itself
                return self._writable(x, overwritten=call.kind.overwrites and alone, assumed=assumed)
            found = self._read(x, self.known(x))
            return torch.full((), numbers[id(x)], dtype=x.dtype).expand(x.size()) if found is None else found

        found = self._called(call, host)
        for x, y in zip(fresh, [y for y in found if not any(y is z for z in self._mine)], strict=True):
            self._keep(x, y, assumed)
        return True

    _mine: list[Host]  # the operands of the call that is under way

    def _called(self, call: Call, host: Callable[[torch.Tensor], Host]) -> list[Host]:
        """The tensors that an op returns when it is called on the host."""
        self._mine = []

        def mine(x: torch.Tensor) -> Host:
            self._mine.append(host(x))
            return self._mine[-1]

        args = [mapped(x, mine) for x in call.args]
        kwargs = {name: mapped(x, mine) for name, x in call.kwargs.items() if name != "pin_memory"}
        with self._as_device() if call.kind.rng and kwargs.get("generator") is None else quietly():
            found = call.func(*args, **kwargs)
        return tensors(found if isinstance(found, (list, tuple)) else (found,), None)

    def _writable(self, x: torch.Tensor, *, overwritten: bool, assumed: bool) -> Host:
        """Return a tensor whose bytes an op on the host may write, and which are known from then on."""
        cell, known = self.storages.known(x), self.known(x)
        if cell is None or (known is None and not (overwritten and covers(x))):
            raise ValueError("what is written in part is not known")
        if known is None or known.bytes is None:
            made = self._room(cell)
            if made is None:
                raise ValueError("no room")
            if known is not None and known.each is not None:
                torch.empty(0, dtype=known.each.dtype).set_(made).fill_(known.each)
            known = Known(made, None, known is not None and known.assumed)
        known.assumed = assumed or (known.assumed and not (overwritten and covers(x)))
        cell.values = known
        assert known.bytes is not None
        return beside(x, known.bytes)

    def _numbers(self, call: Call) -> dict[int, float]:
        """The numbers that operands are taken for of which nothing is known; the same where the storage is."""
        found: dict[int, float] = {}
        place: dict[int, float] = {}
        for x in call.operands:
            if is_number(x.dtype):
                key = x.untyped_storage()._cdata
                found[id(x)] = place.setdefault(key, 1 + STEP * len(place))
            elif self.known(x) is None and x.numel() and any(x is y for y in call.read):
                raise ValueError("whole numbers that nobody knows")
            else:
                found[id(x)] = 0
        return found

    def _each_alone(self, call: Call, fresh: list[torch.Tensor], assumed: bool) -> bool:
        """Compute one element of results that are one number over and over."""
        func, packet = call.func, call.func.overloadpacket
        if packet in PICKS:
            return self._picked(call, fresh[0])
        if not is_elementwise(func) and packet not in SUMS:
            return False
        numbers, units = self._numbers(call), dict[int, Host]()

        def host(x: torch.Tensor) -> Host:
            each = self._each(x, self.known(x))
            if each is None and self.known(x) is not None and any(x is y for y in call.read):
                raise ValueError("elements differ")
            made = torch.full((), numbers[id(x)], dtype=x.dtype) if each is None else each
            return units.setdefault(id(x), unit(x, made))

        found = self._called(_of_one(call), host)
        left = [y for y in found if not any(y is z for z in self._mine)]
        for x, y in zip(fresh, left, strict=True):
            times = call.operands[0].numel() // max(x.numel(), 1) if packet in SUMS else 1
            self._all_are(x, y.reshape(-1)[0] * times, assumed)
        for x in call.written:
            self._all_are(x, units[id(x)].reshape(()), assumed)
        return True

    def _picked(self, call: Call, fresh: torch.Tensor) -> bool:
        table = call.operands[0]
        if (each := self._each(table, self.known(table))) is None:
            return False
        self._all_are(fresh, each, not self.sure(table))
        return True

    def _all_are(self, x: torch.Tensor, each: Host, assumed: bool) -> None:
        """Note that all elements of a tensor are a number."""
        cell = next(iter(self.storages.made(x)), None)
        if cell is None:
            return
        each = each.to(x.dtype)
        if covers(x):
            cell.values = Known(None, each.clone(), assumed)
        elif (before := cell.values) is None or before.each is None or not bool(before.each == each):
            cell.values = None

    @contextmanager
    def _as_device(self) -> Iterator[None]:
        """Let what is drawn come from the device's generator, and the host's be as if nothing had been."""
        here, device = torch.default_generator, torch.cuda.default_generators[0]
        before = _GENERATOR.get_state(here)
        _GENERATOR.set_state(here, _GENERATOR.get_state(device))
        try:
            yield
        finally:
            _GENERATOR.set_state(device, _GENERATOR.get_state(here))
            _GENERATOR.set_state(here, before)


def mapped(value: Any, host: Callable[[torch.Tensor], Host]) -> Any:
    """An argument with tensors of the host in it, where they were of no device."""
    if isinstance(value, torch.Tensor):
        return host(value) if value.is_meta else value
    if isinstance(value, torch.device):
        return HOST
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(x, host) for x in value])
    return value


def _of_one(call: Call) -> Call:
    """A call as it is, on one element: arguments that say how large a result is say 1."""
    names = [a.name for a in call.func._schema.arguments]
    args = [[1] * len(x) if name == SIZE else x for name, x in zip(names, call.args)]
    kwargs: Mapping[str, Any] = {k: [1] * len(x) if k == SIZE else x for k, x in call.kwargs.items()}
    return Call(call.kind, call.func, args, kwargs, call.operands, call.written)
