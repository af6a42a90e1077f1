"""What is known of a storage without bytes, and how a tensor over it looks on the host.

Either all of its bytes, in a storage of the host as large as itself, so that views of one are views of the other; or
one number that all elements are, of whatever size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from gpumem.torch.internals import torch

# Bytes up to which the values of a storage are kept on the host. Of floats: tables and scalars, which programs read. Of
# whole numbers: masks and lengths too, as large as a batch, of 256 sequences of 1,024 at 8 bytes each. Not tuned.
NUMBERS, WHOLE = 64 * 2**10, 2 * 2**20
ALL = 64 * 2**20  # bytes of all storages together; not tuned
META, HOST = "meta", torch.device("cpu")
Host: TypeAlias = torch.Tensor  # one that has its values


class Doubt(IntEnum):
    """How sure values are: they follow from the program alone, from a user's assumption, or are supposed by us."""

    NONE, TOLD, SUPPOSED = range(3)


@dataclass(slots=True, eq=False)
class Known:
    """What is known of a storage: its `bytes`, or the number that `each` element is (of no dimension)."""

    bytes: torch.UntypedStorage | None
    each: torch.Tensor | None
    doubt: Doubt = Doubt.NONE


def is_number(dtype: torch.dtype) -> bool:
    """Whether a type is a float or complex one."""
    return bool(dtype.is_floating_point or dtype.is_complex)


def most(tensor: torch.Tensor) -> int:
    """Bytes up to which a tensor of its type is small."""
    return NUMBERS if is_number(tensor.dtype) else WHOLE


def fits(tensor: torch.Tensor) -> bool:
    """Whether a tensor is small enough to be computed with."""
    return bool(tensor.numel() * tensor.itemsize <= most(tensor))


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor, and the storage that it is a view of, may have its bytes on the host."""
    return fits(tensor) and int(tensor.untyped_storage().nbytes()) <= most(tensor)


def covers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return bool(dense and tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes())


def beside(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor of the host, over a storage there, as `tensor` lies over its own."""
    made = torch.empty(0, dtype=tensor.dtype, device="cpu")
    made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        made = made.conj()
    return torch.ops.aten._neg_view(made) if tensor.is_neg() else made


def unit(tensor: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
    """Return a host tensor of one element with as many dimensions as `tensor`, so that types are promoted alike."""
    return each.to(tensor.dtype, copy=True).reshape([1] * tensor.dim())


def each_of(host: torch.Tensor) -> torch.Tensor | None:
    """The number that all elements of a tensor are, of no dimension; None where they differ."""
    if not host.numel():
        return None
    first = host.reshape(-1)[0]
    return first.clone() if host.numel() == 1 or bool((host == first).all()) else None
