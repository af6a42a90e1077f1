"""Calls that touch all tensors of an optimizer at once, split into calls on consecutive rows of their lists.

A row has the items of all lists at one index: of `_fused_adamw_` a parameter, its gradient and its state. Rows do not
depend on each other, so the pieces together do what the whole call does, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from gpumem.base.units import amount
from gpumem.torch.internals import torch
from gpumem.torch.step.ops import ROWS

ONE_PER_ROW = "scalars", "Tensor"  # name and type of the one argument that is a tensor with a number for each row

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Key = int | str  # of an argument: its position, or its name where it goes by that


@dataclass(frozen=True, slots=True)
class Lists:
    """Which arguments of an op have an item for each row, and how many lists of tensors it makes.

    `has_variants`: a GPU runs it in few kernels or op by op, whichever the tensors allow.
    """

    tensors: tuple[Key, ...]
    numbers: tuple[Key, ...]
    makes: int
    has_variants: bool


@cache
def lists_of(func: Any) -> Lists | None:
    """Read an op's schema, once; None where it does not work row by row, or returns what is of all rows."""
    schema = func._schema
    made = [str(result.type) for result in schema.returns]
    if not schema.name.startswith(ROWS) or any(kind != "List[Tensor]" for kind in made):
        return None
    keyed = [(arg.name if arg.kwarg_only else i, arg.name, str(arg.type)) for i, arg in enumerate(schema.arguments)]
    tensors = tuple(key for key, _, kind in keyed if kind == "List[Tensor]")
    numbers = tuple(key for key, name, kind in keyed if kind == "List[number]" or (name, kind) == ONE_PER_ROW)
    return Lists(tensors, numbers, len(made), schema.name.startswith("aten::_foreach_")) if tensors else None


def lists_named(names: Sequence[str]) -> bool:
    """Whether some of these ops may work row by row, as `_foreach_add_.List` does.

    >>> lists_named(["add.Tensor", "_foreach_add_.List"])
    True
    """
    return any(f"aten::{name}".startswith(ROWS) for name in names)


def in_bytes(chunk: int | str | None) -> int | None:
    """Read the most bytes of a piece; None splits nothing.

    >>> in_bytes("64MiB"), in_bytes(None)
    (67108864, None)
    """
    if isinstance(chunk, str) and "%" in chunk:
        raise ValueError(f"chunk: {chunk!r}: of what is not known before the step has run; write bytes, as 64MiB")
    return None if chunk is None else amount(chunk, 0, "chunk")


def pieces(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], chunk: int) -> list[Arguments] | None:
    """Split a call into calls that touch at most so many bytes each, or one row.

    Parameters
    ----------
    func : OpOverload
    args, kwargs
        What it is called with, as a dispatch mode gets it.
    chunk : int
        The most bytes of tensors in all lists together, those that the call makes included.

    Returns
    -------
    list of (args, kwargs), or None
        In the order of the rows; scalars, single tensors and empty lists go along whole. None where nothing is to be
        split: other ops, lists of several lengths, a call that is small enough.

    Notes
    -----
    O(tensors in the lists); of an op without rows, one look into a table.

    A GPU runs a `_foreach_` op in few kernels if all tensors are of one type and, in each row, alike in shape and
    strides; else op by op. The two may round differently. So except on the host, a call is left whole if some of its
    rows by themselves would run by the other variant.

    Examples
    --------
    >>> x = [torch.ones(2), torch.ones(3), torch.ones(4)]
    >>> add = torch.ops.aten._foreach_add.ScalarList
    >>> parts = pieces(add, (x, [1, 2, 3]), {}, 40)
    >>> [numbers for (_, numbers), _ in parts]
    [[1, 2], [3]]
    >>> joined([add(*args) for args, _ in parts])
    [tensor([2., 2.]), tensor([3., 3., 3.]), tensor([4., 4., 4., 4.])]
    """
    lists = lists_of(func)
    if lists is None:
        return None
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    whole = {key: given[key] for key in lists.tensors if given.get(key)}
    if len({len(tensors) for tensors in whole.values()}) != 1:
        return None
    if (1 + lists.makes) * sum([tensor.nbytes for tensors in whole.values() for tensor in tensors]) <= chunk:
        return None  # by far the most calls; what it makes is at most as much as it is given, list by list
    rows = [*zip(*whole.values())]
    cuts = _cuts([_touched(row, lists.makes) for row in rows], chunk)
    if len(cuts) == 2 or (lists.has_variants and not _same_variant(rows)):
        return None
    whole |= {key: given[key] for key in lists.numbers if _length(given[key]) == len(rows)}
    return [_between(lo, hi, lists=whole, args=args, kwargs=kwargs) for lo, hi in pairwise(cuts)]


def joined(results: Sequence[Any]) -> Any:
    """Return what the whole call would, from the results of its pieces: lists are put together again."""
    first = results[0]
    if isinstance(first, list):
        return [x for part in results for x in part]
    if isinstance(first, tuple):
        return tuple([x for part in lists for x in part] for lists in zip(*results))
    return first


def _length(numbers: Any) -> int:
    """How many numbers are in a list, or in a tensor of one dimension."""
    return len(numbers) if isinstance(numbers, (list, tuple)) or numbers.dim() == 1 else -1


def _touched(row: Sequence[torch.Tensor], makes: int) -> int:
    sizes: list[int] = [tensor.nbytes for tensor in row]
    return sum(sizes) + makes * max(sizes)


def _cuts(sizes: Sequence[int], chunk: int) -> list[int]:
    """Where pieces begin, and the end of the last: each takes all rows that it can."""
    cuts, held = [0], 0
    for index, size in enumerate(sizes):
        if held + size > chunk and index > cuts[-1]:
            cuts.append(index)
            held = 0
        held += size
    return [*cuts, len(sizes)]


def _between(
    lo: int, hi: int, *, lists: Mapping[Key, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Arguments:
    """The arguments of a call on the rows `[lo, hi)`."""
    cut = {key: value[lo:hi] for key, value in lists.items()}
    positional = tuple(cut.get(position, value) for position, value in enumerate(args))
    return positional, {name: cut.get(name, value) for name, value in kwargs.items()}


def _same_variant(rows: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether each row by itself would run by the variant of the whole call."""
    return rows[0][0].device.type == "cpu" or len({_variant(row) for row in rows}) == 1


def _variant(row: Sequence[torch.Tensor]) -> tuple[torch.dtype, torch.device] | None:
    """Type and device of a row's tensors where they may share kernels with other rows; None where they run op by op."""
    first = row[0]
    dense = first.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(first)
    alike = all(
        (other.dtype, other.device, other.shape, other.stride())
        == (first.dtype, first.device, first.shape, first.stride())
        for other in row[1:]
    )
    return (first.dtype, first.device) if dense and alike else None
