"""Keys that a recorded file may have beside those we know, and keys that are only misspelt."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

import msgspec

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
    meant = {key: plain[near] for key in _others(raw, known) if (near := _near(key, plain))}
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


def _near(key: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(_plain(key), known, 1, NEAR)), "")
