"""A machine described in a JSON file: the fields of `Machine`, links as objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from gpumem.base.arguments import strict
from gpumem.base.files import read_bytes
from gpumem.base.names import one_of
from gpumem.io.schema import decode
from gpumem.simulator.machine import Link, Machine


@strict
def read_machine(path: str | Path) -> Machine:
    """Read a machine that is no preset from a JSON file.

    Parameters
    ----------
    path : path
        An object with the fields of `Machine`; those that have a default may be left out.

    Raises
    ------
    ValueError
        Whatever is wrong with the file: a key that is missing or unknown, a value that makes no sense; one line that
        names the file, the place and the value.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "mine.json"
    >>> link = '{"latency_ns": 9000, "ns_per_byte": 0.04}'
    >>> _ = path.write_text(f'''{{"name": "mine", "capacity": 8589934592, "out": {link}, "into": {link},
    ...                         "flops": 9.75e12, "bandwidth": 448e9}}''')
    >>> read_machine(path).capacity
    8589934592
    """
    data, where = read_bytes(path), f"{path}: machine"
    if not data.strip():
        raise ValueError(f"{path}: the file is empty")
    keys = decode(data, dict[str, msgspec.Raw], where)
    if "name" in keys:  # a machine; what is misspelt is missing as well, so say the former
        _known(keys, Machine, where)
    machine = decode(data, Machine, where)
    for link in ("out", "into"):
        _known(decode(keys[link], dict[str, Any], where), Link, f"{where}.{link}")
    return machine


def _known(keys: Iterable[str], kind: type[Any], where: str) -> None:
    for key in keys:
        # op times are learned from a table (`Machine.measured`), no text says them
        one_of(f"{where}: key", key, [field.name for field in fields(kind) if field.name != "times"])
