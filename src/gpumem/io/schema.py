"""What both JSON formats share: bounded numbers, decoding with a place in each error, ids as positions."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Amount = Annotated[float, msgspec.Meta(ge=0, lt=2.0**63)]
Index = Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]


class File(msgspec.Struct):
    """A trace file: its three keys, rows still packed."""

    meta: dict[str, Any]
    buffers: msgspec.Raw
    ops: msgspec.Raw


def decode(raw: bytes | msgspec.Raw, kind: type[T], where: str) -> T:
    """Decode JSON as `kind`; a ValueError says what is wrong, and where."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise ValueError(f"{where}{place.rstrip('`')}: {what[0].lower()}{what[1:]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from None


def check_positions(ids: list[int], what: str) -> None:
    """Demand that each row's id is its position."""
    for position, given in enumerate(ids):
        if given != position:
            problem = "is a duplicate" if given < position else "is unknown: rows are numbered from 0"
            raise ValueError(f"{what}[{position}]: id {given} {problem}")
