"""Reads and writes that no dispatch mode sees: of the bytes themselves. What is touched so is brought back first.

Stand-ins are made for methods of storages, of tensors and of scripted modules, for some of PyTorch's functions, and for
those of extensions. (A mode of `torch.overrides` would see functions, too; but where one is on, `nn.TransformerEncoder`
takes another path.)

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
    """What somebody does with a storage's bytes: reads them, writes them, or keeps their address for either."""

    READS = "reads"
    WRITES = "writes"
    KEEPS = "keeps"


Reached = Callable[[Sequence[torch.UntypedStorage], ByteAccess], None]
Changed = Callable[[torch.UntypedStorage], None]
Named = Callable[[torch.UntypedStorage], int | None]


def access_of(name: str) -> ByteAccess | None:
    """What a method of storages does with their bytes; None where it touches none.

    >>> access_of("nbytes"), access_of("clone"), access_of("fill_"), access_of("of a later version")
    (None, <ByteAccess.READS: 'reads'>, <ByteAccess.WRITES: 'writes'>, <ByteAccess.KEEPS: 'keeps'>)
    """
    if name in LOOKS:
        return None
    return ByteAccess.READS if name in READS else ByteAccess.WRITES if name in WRITES else ByteAccess.KEEPS


@cache
def methods() -> tuple[tuple[str, ByteAccess], ...]:
    """The methods of a storage that touch its bytes, and how; those of the class alone have no storage to touch."""
    found = []
    for name in dir(torch.UntypedStorage):
        method, how = getattr_static(torch.UntypedStorage, name), access_of(name)
        bound = isinstance(method, (staticmethod, classmethod)) or type(method).__name__ == "classmethod_descriptor"
        if how is not None and callable(method) and not bound:
            found.append((name, how))
    return tuple(found)


class StorageAccess:
    """Lets others know, while it is entered, of storages that are about to be touched.

    Parameters
    ----------
    reach : callable
        Told which storages, and how; it may raise.
    changed : callable
        Told afterwards of one that may have another size by now.
    named : callable
        Answers with a number where an address is asked for as a name, so that no bytes need be there.
    all_there : callable
        Makes a context in which all that is managed is there.
    """

    def __init__(
        self, reach: Reached, changed: Changed, named: Named, all_there: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._of_functions = {
            False: partial(_of_any, ByteAccess.WRITES, reach),
            True: partial(_of_tensors, ByteAccess.KEEPS, reach, named),
        }
        makers: list[tuple[Any, str, Callable[[Any], Any]]] = [
            *((torch.UntypedStorage, x, partial(_of_storages, how, reach, changed, named)) for x, how in methods()),
            *((owner, x, partial(_of_any, ByteAccess.READS, reach)) for owner, names in FUNCTIONS for x in names),
            *((owner, x, partial(_of_all, all_there)) for owner, names in WRITERS for x in names),
            *((torch.Tensor, x, partial(_of_tensors, ByteAccess.READS, reach, named)) for x in TENSOR_READS),
            *((torch.Tensor, x, partial(_of_tensors, ByteAccess.WRITES, reach, named)) for x in TENSOR_WRITES),
            *((torch.Tensor, x, partial(_of_tensors, ByteAccess.KEEPS, reach, named)) for x in TENSOR_KEEPS),
            (torch.Tensor, EXCHANGE, lambda original: None),
            (*FILES, partial(_of_records, reach)),
        ]
        self.stand_ins = [_Standing(owner, x, make) for owner, x, make in makers if hasattr(owner, x)]
        self._world = ExitStack()

    def __enter__(self) -> None:
        found = []
        for module, name in extensions():
            make = self._of_functions[getattr(module, name) is to_dlpack]
            found.append(_Standing(module, name, make))
        with ExitStack() as world:
            for one in (*self.stand_ins, *found):
                world.enter_context(one)
            self._world = world.pop_all()

    def __exit__(self, *error: object) -> None:
        self._world.close()


class _Standing:
    """Puts something in an attribute's place while it is entered; made once, as a run may be entered with each step."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner, self.name = owner, name
        self.original = getattr(owner, name)
        self.stand_in = make(self.original)
        self.before: Any = None

    def __enter__(self) -> None:
        self.before = vars(self.owner).get(self.name, self)  # itself where a base class has it
        setattr(self.owner, self.name, self.stand_in)
        scripted_as(self.original, self.stand_in)

    def __exit__(self, *error: object) -> None:
        scripted_as(self.stand_in, self.original)
        if self.before is self:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


def _of_storages(how: ByteAccess, reach: Reached, changed: Changed, named: Named, original: Callable[..., Any]) -> Any:
    """Stand in for a method of storages."""
    by_name = original.__name__ == "data_ptr"

    @wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if by_name and _is_name(sys._getframe(1)) and (number := named(self)) is not None:
            return number
        others = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.UntypedStorage)]
        if others:
            reach([self, *others], ByteAccess.READS)
        sliced = original.__name__ == "__getitem__" and isinstance(args[0], slice)  # that is another storage there
        reach([self], ByteAccess.KEEPS if sliced else how)
        result = original(self, *args, **kwargs)
        if how is not ByteAccess.READS:
            changed(self)
        return result

    return called


def _of_tensors(how: ByteAccess, reach: Reached, named: Named, original: Callable[..., Any]) -> Any:
    """Stand in for a method of tensors, or a function of one; others that it is given are read."""
    by_name = original.__name__ == "data_ptr"

    @wraps(original)
    def called(x: Any, *args: Any, **kwargs: Any) -> Any:
        mine = _storages([x])
        if by_name and mine and _is_name(sys._getframe(1)) and (number := named(mine[0])) is not None:
            return number
        if args and (others := _storages(args)):
            reach([*mine, *others], ByteAccess.READS)
        reach(mine, how)
        return original(x, *args, **kwargs)

    return called


def _of_any(how: ByteAccess, reach: Reached, original: Callable[..., Any]) -> Any:
    """Stand in for a function that touches the tensors among its arguments."""

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        reach(_storages((*args, *kwargs.values())), how)
        return original(*args, **kwargs)

    return called


def _of_all(all_there: Callable[[], AbstractContextManager[None]], original: Callable[..., Any]) -> Any:
    """Stand in for what writes a scripted module, or a graph, to a file."""

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        with all_there():
            return original(*args, **kwargs)

    return called


def _of_records(reach: Reached, original: Callable[..., Any]) -> Any:
    """Stand in for the writer of a checkpoint's file."""

    @wraps(original)
    def called(self: Any, name: str, data: Any, *args: Any) -> Any:
        if isinstance(data, torch.UntypedStorage):
            reach([data], ByteAccess.READS)
        return original(self, name, data, *args)

    return called


def _storages(values: Iterable[Any]) -> list[torch.UntypedStorage]:
    """The storages of tensors, within whatever transforms of `torch.func` have wrapped them in; some have none."""
    found = []
    for x in map(unwrapped, tensors(values, None)):
        with suppress(NotImplementedError, RuntimeError):
            found.append(x.untyped_storage())
    return found


def _is_name(frame: FrameType) -> bool:
    """Whether somebody asks for an address who never reads there."""
    functions = NAMED_BY_ADDRESS.get(frame.f_globals.get("__name__", ""), ())
    return frame.f_code.co_name in functions
