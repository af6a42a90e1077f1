"""Options of planners, checked in one place and before anything else, even if the trace fits the limit already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from math import inf
from typing import Any

from gpumem.base.names import one_of
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

Rule = tuple[Callable[[Any], bool], str]
NOT_BELOW_0: Rule = (lambda value: value >= 0, "is below 0")
RULES: dict[str, Rule] = {
    "bound": NOT_BELOW_0,
    "effort": (lambda value: 0 < value < inf, "is not positive and finite"),
    "evaluations": (lambda value: value >= 4, "is below 4, the number of scores"),
    "feedback": NOT_BELOW_0,
    "gap": (lambda value: 0 <= value < 1, "is not in [0, 1)"),
    "iterations": (lambda value: value >= 1, "is below 1"),
    "ratio": (lambda value: 0 <= value <= 1, "is not in [0, 1]"),
    "robust": (lambda value: 0 <= value <= 3, "is not in [0, 3]"),
    "seed": NOT_BELOW_0,
    "segments": (lambda value: value is None or value >= 1, "is below 1"),
    "stall": (lambda value: 0 <= value < inf, "is not finite and >= 0"),
    "targets": (
        lambda value: len(value) > 0 and all(0 < part <= 1 for part in value),
        "must be fractions of the limit in (0, 1], at least one",
    ),
    "threshold": NOT_BELOW_0,
}


def option(default: Any, choices: Collection[str] = ()) -> Any:
    """Declare the field of a planner's record that is one of some texts, or in the range that `RULES` has for it."""
    return field(default=default, metadata={"among": choices})


def check_option(name: str, value: Any, declared: Mapping[str, Any]) -> None:
    """Refuse a value that is not what its `option` allows; other fields may be anything."""
    if choices := declared.get("among"):
        one_of(name, value, choices)
    elif "among" in declared:
        check_numbers(**{name: value})


def check_numbers(**options: float) -> None:
    """Refuse numbers that are out of the range of the option that they are given for.

    >>> check_numbers(effort=0.5, seed=3)
    >>> check_numbers(ratio=7.0)
    Traceback (most recent call last):
    ValueError: ratio: 7.0 is not in [0, 1]
    """
    for name, value in options.items():
        is_allowed, complaint = RULES[name]
        if not is_allowed(value):  # nan is in no range
            raise ValueError(f"{name}: {value} {complaint}")


def check_start(start: Plan | None, trace: Trace, machine: Machine, limit: int) -> None:
    """Refuse a plan to begin with that is none of this trace, or that is above a limit. O((n + d) log (n + d))."""
    if start is None:
        return
    try:
        swapped = start.apply(trace)
    except ValueError as error:
        raise ValueError(f"start: no plan for trace {trace.name!r:.60}: {error}") from None
    if (load := swapped.peak_live_bytes) > limit:
        raise ValueError(f"start: its peak of {load} live bytes is above the limit of {limit} bytes")
    if (pinned := int(swapped.live_bytes(host=True).max())) > machine.pinned:
        raise ValueError(f"start: what it keeps on the host, {pinned} bytes, is above the budget of {machine.pinned}")


def check_ops(algorithms: Iterable[int], trace: Trace) -> None:
    """Refuse a choice of ways for an op that there is not."""
    for op in algorithms:
        if not 0 <= op < trace.n:
            raise ValueError(f"algorithms: op {op}: there are {trace.n} ops")
