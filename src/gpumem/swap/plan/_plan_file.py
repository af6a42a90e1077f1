"""Reading plan files, `gpumem.plan/1`: what is wrong with one is named by its decision, its field and its value."""

from __future__ import annotations

import re
import reprlib
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, NoReturn, Union

import msgspec

from gpumem.base.names import meant
from gpumem.swap.plan.decisions import KINDS, Decision

FORMAT: Literal["gpumem.plan/1"] = "gpumem.plan/1"
# Ops, bytes, ns: up to half of int64's range, so that the sum of two does not overflow.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


def _row(kind: str) -> type[msgspec.Struct]:
    """The row of a decision in a file: its fields, and its kind as the tag."""
    types: dict[Any, Any] = {"int": Count, "str": str}
    columns = [
        (field.name, types[field.type], *([] if field.default is MISSING else [field.default]))
        for field in fields(KINDS[kind])
    ]
    return msgspec.defstruct(kind, columns, tag_field="kind", tag=kind, forbid_unknown_fields=True)


_Row: Any = Union[tuple(map(_row, KINDS))]  # noqa: UP007  of a tuple there is no other form


class PlanFile(msgspec.Struct):
    """The keys of a plan file; others are passed over, so that newer files read too."""

    format: Literal["gpumem.plan/1"]
    decisions: list[_Row]
    n: Count = 0
    trace: str = ""
    blocking: bool = False

    def to_decisions(self) -> tuple[Decision, ...]:
        """Return the decisions."""
        return tuple(KINDS[type(row).__name__](**msgspec.structs.asdict(row)) for row in self.decisions)


def read_plan(text: str | bytes) -> PlanFile:
    """Read a plan file.

    Raises
    ------
    ValueError
        Not JSON, not a plan, a decision of an unknown kind or with a wrong field.
    """
    try:
        try:
            return msgspec.json.decode(text, type=PlanFile)
        except msgspec.ValidationError as error:
            _refuse(error, msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"plan: not JSON ({error}): {reprlib.repr(text)}") from None


def _refuse(error: msgspec.ValidationError, file: Any) -> NoReturn:
    """Say what is wrong and where, and which value stands there."""
    given = file.get("format") if isinstance(file, dict) else None
    if given != FORMAT:  # first: another format has other keys
        raise ValueError(f"plan: format {given!r:.60} is not {FORMAT!r}")
    message, _, path = str(error).rpartition(" - at `$")
    place, value, kind, hint = "plan", file, "", ""
    for key, row in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(row)]
        if row:
            kind = str(value.get("kind", "")) if isinstance(value, dict) else ""
            place = f"plan: decision {row}" + (f" ({kind})" if kind in KINDS else "")
        elif key != "decisions" or not isinstance(value, list):
            place += f": {key}"
    if kind not in KINDS and "decision " in place:
        hint = f"; there are {', '.join(KINDS)}{meant(kind, KINDS)}"
    elif unknown := re.search("unknown field `(.*)`", message):
        hint = meant(unknown[1], [field.name for field in fields(KINDS[kind])])
    message = message or path  # without a place it is about the whole file
    raise ValueError(f"{place}: {message[0].lower()}{message[1:]}, found {value!r:.60}{hint}") from None
