"""Bytes, nanoseconds and fractions as people write and read them."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_TIMES = {"": 1, "NS": 1, "US": 10**3, "MS": 10**6, "S": 10**9}
_MEANT = {"PERCENT": "%", "PCT": "%"} | {f"{k}{b}": f"{k}iB" for k in "KMGT" for b in ("", "B")}
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def human(size: int) -> str:
    """Write bytes in the largest binary unit that keeps them above 1.

    >>> human(1536), human(12), human(3 * 2**30)
    ('1.50 KiB', '12 B', '3.00 GiB')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"


def exact(size: int) -> str:
    """Write bytes for people, and to the byte for what they type next.

    >>> exact(1537), exact(12)
    ('1.50 KiB (1537 bytes)', '12 bytes')
    """
    return f"{size} bytes" if size < 2**10 else f"{human(size)} ({size} bytes)"


def human_ns(ns: int) -> str:
    """Write nanoseconds in a unit for people.

    >>> human_ns(57_494_987), human_ns(0)
    ('57.49 ms', '0 ns')
    """
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.2f} {unit}"
    return f"{ns} ns"


def percent(part: float | None) -> str:
    """Write a fraction for people; None, which JSON has for it, is infinite.

    >>> percent(0.0125), percent(None)
    ('1.25%', 'infinite')
    """
    return "infinite" if part is None or math.isinf(part) else f"{part:.2%}"


def amount(text: str | int, whole: int, what: str, *, least: int = 1) -> int:
    """Read bytes: a number, or a text with bytes, `KiB/MiB/GiB/TiB` or `%` of `whole`.

    Decimal units are refused, as nobody can tell who means 10^6 bytes by MB and who 2^20. So is a bare number that is
    next to nothing of `whole`: somebody forgot the unit (`70B` is 70 bytes).

    >>> amount("70%", 1000, "--limit"), amount("1.5KiB", 1000, "--limit"), amount("42", 1000, "--limit")
    (700, 1536, 42)
    >>> amount("0.7", 2**30, "--limit")
    Traceback (most recent call last):
    ...
    ValueError: --limit: '0.7' is 0 bytes, next to nothing of 1.00 GiB; did you mean '70%'?
    """
    value = _bytes(text, whole, what, least) if isinstance(text, str) else _whole(text, what)
    if value >= 2**62:
        raise ValueError(f"{what}: {text!r} is too large")
    if value < least:
        raise ValueError(f"{what}: {text!r} is {value} bytes, it must be at least {least}")
    return value


def _bytes(text: str, whole: int, what: str, least: int) -> int:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[A-Za-z]*)\s*", text)
    if not match:
        comma = (
            f"; did you mean {text.replace(',', '.')!r}?" if re.fullmatch(r"[0-9]+,[0-9]+ ?(%|[A-Za-z]*)", text) else ""
        )
        raise ValueError(f"{what}: {text!r} is not an amount; write bytes, 300MiB, 1.5GiB or 70%{comma}")
    number, unit = match[1], match[2].upper()
    if unit != "%" and unit not in _UNITS:
        hint = f"; did you mean '{number[:40]}{_MEANT[unit]}'?" if unit in _MEANT else ""
        raise ValueError(f"{what}: unit {match[2]!r} of {text!r} is unknown; use B, KiB, MiB, GiB or %{hint}")
    if len(number) > 40:
        raise ValueError(f"{what}: {text[:40]!r}... has too many digits")
    value = int(Fraction(number) * (Fraction(whole, 100) if unit == "%" else _UNITS[unit]))  # 100% is all of it
    if least and not unit and value < 2**10 and whole >= 2**20 and (value or Fraction(number)):
        raise ValueError(
            f"{what}: {text!r} is {value} bytes, next to nothing of {human(whole)}; {_percentage(Fraction(number))}"
        )
    return value


def _percentage(number: Fraction) -> str:
    """What somebody meant who wrote a small number."""
    part = number * 100 if number < 1 else number
    return f"did you mean '{float(part):g}%'?" if part <= 100 else "write a unit, as in 300MiB"


def _whole(value: object, what: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{what}: {value!r} is neither a whole number of bytes nor a text such as '300MiB' or '70%'")
    return int(value.__index__())


def fraction(text: str | float, what: str) -> float:
    """Read a part of something: a number, or a text with or without `%`.

    >>> fraction("10%", "--overhead"), fraction(0.1, "--overhead"), fraction("150%", "--overhead")
    (0.1, 0.1, 1.5)
    >>> fraction("10", "--overhead")
    Traceback (most recent call last):
    ...
    ValueError: --overhead: '10' is 1000%; did you mean '10%'?
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)\s*", str(text))
    if not match or isinstance(text, bool):
        raise ValueError(f"{what}: {text!r:.60} is no part of anything; write 10% or 0.1")
    value = float(Fraction(match[1]) / (100 if match[2] else 1))
    if value > 1 and not match[2]:
        raise ValueError(f"{what}: {text!r:.60} is {value:.0%}; did you mean '{match[1]}%'?")
    return value


def moment(text: str, what: str) -> int:
    """Read nanoseconds, or `us`, `ms`, `s`.

    >>> moment("1.5ms", "--arrive"), moment("20", "--arrive")
    (1500000, 20)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _TIMES:
        raise ValueError(f"{what}: {text!r} is not a time; write 20us, 1.5ms, 2s or nanoseconds")
    if len(match[1]) > 40 or (value := int(Fraction(match[1]) * _TIMES[match[2].upper()])) >= 2**53:
        raise ValueError(f"{what}: {text[:40]!r} is too long")
    return value
