"""What both JSON formats share: bounded numbers, decoding with a place in each error, ids as positions."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from gpumem.base.files import replacing
from gpumem.base.names import meant

T = TypeVar("T")
# Ranges of numbers in files: below 2**62, so that sums of two of them fit in int64; -1 stands for none.
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
        problem = f"{what[0].lower()}{what[1:]}{_kind_of(bytes(raw), place)}{_meant(what, kind)}"
        raise ValueError(f"{where}{place}: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: {error}{_near(bytes(raw), str(error))}") from None


def _meant(message: str, kind: object) -> str:
    """Ask what was meant by a key that is unknown."""
    row = next(iter(get_args(kind)), kind)
    key = re.search("unknown field `(.*)`", message)
    return meant(key[1], getattr(row, "__struct_fields__", ())) if key else ""


def _kind_of(raw: bytes, place: str) -> str:
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

    Where it is neither, decoding says what is wrong.
    """
    listed = bytes(raw).lstrip()[:1] == b"["
    try:
        fields: Any = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]] if listed else dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    rows: list[dict[str, msgspec.Raw]] = fields if listed else [fields]
    plain = {_plain(key): key for key in known}
    others = set[str]().union(*rows).difference(known)
    near = {key: difflib.get_close_matches(_plain(key), plain, 1, NEAR) for key in others}
    meant = {key: plain[names[0]] for key, names in near.items() if names}
    for position, row in enumerate(rows if meant else ()):
        for key in row:
            if key in meant and meant[key] not in row:
                place = f"{where}[{position}]" if listed else where
                raise ValueError(f"{place}: key {key!r} is unknown; did you mean {meant[key]!r}?")


def _plain(key: str) -> str:
    return key.lower().replace("_", "")


def write_rows(path: str | Path, meta: Mapping[str, Any], buffers: Iterable[object], ops: Iterable[object]) -> None:
    """Write a trace file, gzipped where `path` ends in `.gz`, one buffer or op a line."""
    encode = msgspec.json.encode
    with replacing(path) as file:
        file.write(b'{"meta":' + encode(meta))
        for key, rows in ((b"buffers", buffers), (b"ops", ops)):
            file.write(b',\n"' + key + b'":[\n' + b",\n".join(map(encode, rows)) + b"\n]")
        file.write(b"}\n")
