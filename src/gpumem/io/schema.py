"""What both JSON formats share: bounded numbers, decoding with a place in each error, ids as positions."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable
from typing import Annotated, TypeVar, get_args

import msgspec

from gpumem.base.names import meant

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Amount = Annotated[float, msgspec.Meta(ge=0, lt=2.0**63)]
Index = Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]


class File(msgspec.Struct):
    """A trace file: its three keys, still packed."""

    meta: msgspec.Raw
    buffers: msgspec.Raw
    ops: msgspec.Raw


def decode(raw: bytes | msgspec.Raw, kind: type[T], where: str) -> T:
    """Decode JSON as `kind`; a ValueError says what is wrong, where, and what stands there."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).rpartition(" - at `$")
        what, place = (what, place.removesuffix("`")) if what else (place, "")
        told = f"{what[0].lower()}{what[1:]}{_found(bytes(raw), place)}{_meant(what, kind)}"
        raise ValueError(f"{where}{place}: {told}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: {error}{_near(bytes(raw), str(error))}") from None


def _meant(message: str, kind: object) -> str:
    """Ask what was meant by a key that is unknown."""
    row = next(iter(get_args(kind)), kind)
    key = re.search("unknown field `(.*)`", message)
    return meant(key[1], getattr(row, "__struct_fields__", ())) if key else ""


def _found(raw: bytes, place: str) -> str:
    """Quote the value at `place`, a path like `[3].reads[0]`, as far as it can be found."""
    try:
        value = json.loads(raw)
        for key, position in re.findall(r"\.(\w+)|\[(\d+)\]", place):
            value = value[key] if key else value[int(position)]
        text = json.dumps(value)
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f" (found {text if len(text) <= 60 else text[:57] + '...'})"


def _near(raw: bytes, message: str) -> str:
    """Quote the text around the byte that a message about malformed JSON names."""
    byte = re.search(r"\(byte (\d+)\)", message)
    if byte is None:
        return ""
    around = raw[max(int(byte[1]) - 20, 0) : int(byte[1]) + 20]
    return f" near {around.decode(errors='replace')!r}"


def check_positions(ids: list[int], what: str, key: str = "id") -> None:
    """Demand that each row's id is its position."""
    for position, given in enumerate(ids):
        if given != position:
            problem = "is a duplicate" if given < position else "is unknown: rows are numbered from 0"
            raise ValueError(f"{what}[{position}]: {key} {given} {problem}")


NEAR = 0.75  # similarity: `byte` and `bytes` 0.89, `duration` and `duration_ns` 0.84; `flags` and `flops` 0.6


def check_keys(raw: msgspec.Raw, known: Collection[str], where: str) -> None:
    """Refuse a key that is near to a known one which is absent there; `raw` is an object, or a list of them.

    Others may stand: tools write more into their files than we read. Where a known key is there as well, one near to
    it is no slip. Rows are looked at one by one only where some key is near to a known one.

    Raises
    ------
    ValueError
        It names the row and both keys.
    """
    plain = {_plain(key): key for key in known}
    meant = {key: plain[near] for key in _others(raw, known) if (near := _near_key(key, plain))}
    if not meant:
        return
    rows = msgspec.json.decode(raw)
    for i, row in enumerate(rows if isinstance(rows, list) else [rows]):
        for key in row:
            if key in meant and meant[key] not in row:
                place = f"{where}[{i}]" if isinstance(rows, list) else where
                raise ValueError(f"{place}: key {key!r} is unknown; did you mean {meant[key]!r}?")


def _others(raw: msgspec.Raw, known: Iterable[str]) -> set[str]:
    """The keys that are not known; none where this is no list of objects: decoding says what is wrong then.

    The parser skips values and stops at the first key that it was not told of, so that is one pass, and the part up to
    its first use for each key. Rows in Python would take as long as reading the file.
    """
    allowed, found = {*known}, set[str]()
    listed = bytes(raw).lstrip()[:1] == b"["
    while True:
        fields = [(f"f{k}", msgspec.Raw, msgspec.Raw()) for k in range(len(allowed))]
        names = {f"f{k}": key for k, key in enumerate(sorted(allowed))}
        row = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, gc=False)
        try:
            msgspec.json.decode(raw, type=list[row] if listed else row)  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            key = re.search("unknown field `(.*?)`", str(error))
            if key is None or key[1] in allowed:
                return set()
            found.add(key[1])
            allowed.add(key[1])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return set()
        else:
            return found


def _plain(key: str) -> str:
    return key.lower().replace("_", "")


def _near_key(key: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(_plain(key), known, 1, NEAR)), "")
