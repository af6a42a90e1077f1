"""Untracked storage access: reads and writes of bytes that no dispatch mode sees. What they touch is brought first.

Wrappers replace methods of storages, of tensors and of scripted modules, some of PyTorch's functions, and those of
extensions, while a run is entered. (A mode of `torch.overrides` would see functions, too; but where one is on,
`nn.TransformerEncoder` takes another path.)

`internals/byte_access.py` lists which they are. A method of storages that stands in no list may keep the address: such
a storage stays on the device for good.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from enum import Enum
from functools import cache, partial, wraps
from inspect import getattr_static
from types import FrameType
from typing import Any

from gpumem.torch.internals import scripted_as, to_dlpack, torch, unwrapped
from gpumem.torch.internals.byte_access import (
    EXCHANGE,
    FILES,
    FUNCTIONS,
    LOOKS,
    NAMED_BY_ADDRESS,
    READS,
    TENSOR_KEEPS,
    TENSOR_READS,
    TENSOR_WRITES,
    WRITERS,
    WRITES,
)
from gpumem.torch.run.extensions import extensions
from gpumem.torch.step.ops import tensors


class ByteAccess(Enum):
    """How a storage's bytes are touched: read, written, or by an address that is kept for either."""

    READS = "reads"
    WRITES = "writes"
    KEEPS = "keeps"


BeforeAccess = Callable[[Sequence[torch.UntypedStorage], ByteAccess], None]
AfterResize = Callable[[torch.UntypedStorage], None]
NameOf = Callable[[torch.UntypedStorage], int | None]
TENSOR_METHODS = (
    (ByteAccess.READS, TENSOR_READS),
    (ByteAccess.WRITES, TENSOR_WRITES),
    (ByteAccess.KEEPS, TENSOR_KEEPS),
)


def access_of(name: str) -> ByteAccess | None:
    """How a method of storages touches their bytes; None where it touches none.

    >>> access_of("nbytes"), access_of("clone"), access_of("fill_"), access_of("of a later version")
    (None, <ByteAccess.READS: 'reads'>, <ByteAccess.WRITES: 'writes'>, <ByteAccess.KEEPS: 'keeps'>)
    """
    if name in LOOKS:
        return None
    return ByteAccess.READS if name in READS else ByteAccess.WRITES if name in WRITES else ByteAccess.KEEPS


@cache
def methods() -> tuple[tuple[str, ByteAccess], ...]:
    """The methods of a storage that touch its bytes, and how; those of the class alone have no storage to touch."""
    touching = []
    for name in dir(torch.UntypedStorage):
        method, how = getattr_static(torch.UntypedStorage, name), access_of(name)
        of_class = isinstance(method, (staticmethod, classmethod)) or type(method).__name__ == "classmethod_descriptor"
        if how is not None and callable(method) and not of_class:
            touching.append((name, how))
    return tuple(touching)


class StorageAccess:
    """Calls its four functions around untracked accesses, while it is entered.

    Parameters
    ----------
    before : callable
        Called with storages that are about to be touched, and how; it may raise.
    resized : callable
        Called afterwards with one that may have another size by now.
    name_of : callable
        Returns a number where an address is asked for as a name only, so that the bytes need not be on the device.
    all_on_device : callable
        Returns a context in which all managed storages are on the device.
    """

    def __init__(
        self,
        before: BeforeAccess,
        resized: AfterResize,
        name_of: NameOf,
        all_on_device: Callable[[], AbstractContextManager[None]],
    ) -> None:
        of_storages = partial(_of_storages, before=before, resized=resized, name_of=name_of)
        of_tensors = partial(_of_tensors, before=before, name_of=name_of)
        of_any = partial(_of_any, before=before)
        # Functions of extensions, by whether it is the one that gives a tensor's address out as a dlpack capsule.
        self._of_extensions = {
            False: partial(of_any, how=ByteAccess.WRITES),
            True: partial(of_tensors, how=ByteAccess.KEEPS),
        }
        makers: list[tuple[Any, str, Callable[[Any], Any]]] = [
            *((torch.UntypedStorage, name, partial(of_storages, how=how)) for name, how in methods()),
            *((owner, name, partial(of_any, how=ByteAccess.READS)) for owner, names in FUNCTIONS for name in names),
            *((owner, name, partial(_of_all, everything=all_on_device)) for owner, names in WRITERS for name in names),
            *((torch.Tensor, name, partial(of_tensors, how=how)) for how, names in TENSOR_METHODS for name in names),
            (torch.Tensor, EXCHANGE, lambda original: None),
            (*FILES, partial(_of_records, before=before)),
        ]
        self.stand_ins = [_StandIn(owner, name, make) for owner, name, make in makers if hasattr(owner, name)]
        self._entered = ExitStack()

    def __enter__(self) -> None:
        of_extensions = []
        for module, name in extensions():
            make = self._of_extensions[getattr(module, name) is to_dlpack]
            of_extensions.append(_StandIn(module, name, make))
        with ExitStack() as entered:
            for stand_in in (*self.stand_ins, *of_extensions):
                entered.enter_context(stand_in)
            self._entered = entered.pop_all()

    def __exit__(self, *error: object) -> None:
        self._entered.close()


class _StandIn:
    """Replaces an attribute while it is entered; made once, as a run may be entered with each step."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner, self.name = owner, name
        self.original = getattr(owner, name)
        self.stand_in = make(self.original)
        self.before: Any = None

    def __enter__(self) -> None:
        self.before = vars(self.owner).get(self.name, self)  # `self` marks that a base class has it
        setattr(self.owner, self.name, self.stand_in)
        scripted_as(self.original, self.stand_in)

    def __exit__(self, *error: object) -> None:
        scripted_as(self.stand_in, self.original)
        if self.before is self:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


def _of_storages(
    original: Callable[..., Any], *, how: ByteAccess, before: BeforeAccess, resized: AfterResize, name_of: NameOf
) -> Any:
    """Return what stands in for a method of storages."""
    asks_address = original.__name__ == "data_ptr"

    @wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if asks_address and _is_for_a_name(sys._getframe(1)) and (number := name_of(self)) is not None:
            return number
        others = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.UntypedStorage)]
        if others:
            before([self, *others], ByteAccess.READS)
        slices = original.__name__ == "__getitem__" and isinstance(args[0], slice)  # returns a storage over its bytes
        before([self], ByteAccess.KEEPS if slices else how)
        result = original(self, *args, **kwargs)
        if how is not ByteAccess.READS:
            resized(self)
        return result

    return called


def _of_tensors(original: Callable[..., Any], *, how: ByteAccess, before: BeforeAccess, name_of: NameOf) -> Any:
    """Return what stands in for a method of tensors, or a function of one; other tensors that it is given are read."""
    asks_address = original.__name__ == "data_ptr"

    @wraps(original)
    def called(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        own = _storages([tensor])
        if asks_address and own and _is_for_a_name(sys._getframe(1)) and (number := name_of(own[0])) is not None:
            return number
        if args and (others := _storages(args)):
            before([*own, *others], ByteAccess.READS)
        before(own, how)
        return original(tensor, *args, **kwargs)

    return called


def _of_any(original: Callable[..., Any], *, how: ByteAccess, before: BeforeAccess) -> Any:
    """Return what stands in for a function that touches the tensors among its arguments."""

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        before(_storages((*args, *kwargs.values())), how)
        return original(*args, **kwargs)

    return called


def _of_all(original: Callable[..., Any], *, everything: Callable[[], AbstractContextManager[None]]) -> Any:
    """Return what stands in for a function that writes a scripted module, or a graph, to a file."""

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        with everything():
            return original(*args, **kwargs)

    return called


def _of_records(original: Callable[..., Any], *, before: BeforeAccess) -> Any:
    """Return what stands in for the writer of a checkpoint's file."""

    @wraps(original)
    def called(self: Any, name: str, data: Any, *args: Any) -> Any:
        if isinstance(data, torch.UntypedStorage):
            before([data], ByteAccess.READS)
        return original(self, name, data, *args)

    return called


def _storages(values: Iterable[Any]) -> list[torch.UntypedStorage]:
    """The storages of tensors, within whatever transforms of `torch.func` have wrapped them in; some have none."""
    storages = []
    for tensor in map(unwrapped, tensors(values, None)):
        with suppress(NotImplementedError, RuntimeError):
            storages.append(tensor.untyped_storage())
    return storages


def _is_for_a_name(frame: FrameType) -> bool:
    """Whether a frame asks for an address to tell storages apart by it, and never reads there."""
    functions = NAMED_BY_ADDRESS.get(frame.f_globals.get("__name__", ""), ())
    return frame.f_code.co_name in functions
