"""What Numba's memory manager is variables, by the environment or by `emm.configure`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

from gpumem.base.names import choice, one_of
from gpumem.base.units import amount
from gpumem.pipeline.compare_planners import IN_A_RUN
from gpumem.pool.planners import PLANNERS
from gpumem.runtime.block_recorder import PERIOD, WRITES
from gpumem.swap.planners import planner_of

WAITS = {"0": False, "1": True, "False": False, "True": True}


@dataclass(frozen=True, slots=True)
class Options:
    """What `configure` was variables, or the environment.

    Attributes
    ----------
    capacity : int, str or None
        Bytes of the pool at most: a number, `"1GiB"`, `"80%"` of the device; None: all of it, or where the
        device cannot map memory as it is needed, 90 % of what is free.
    planner : str
        Who places the iteration; a name in `gpumem.pool.planners.PLANNERS`.
    min_length : int
        Fewest requests of an iteration, so that a short loop is not taken for one; under a memory limit, fewest events.
    limit : int, str or None
        Bytes that arrays hold on the device at once: what is more lies on the host, and comes when it is used. None:
        all stays on the device.
    swap : str
        Who plans what moves within the limit; names in `gpumem.swap.PLANNERS`, or `module:name`, with commas between;
        `on-demand` plans nothing. Unless set, two that take no time, and `search`.
    seconds : float
        Of planning, at most, once there is a plan.
    detect : str
        How an iteration is found within the limit, `period` or `writes`; see `Adaptive`.
    wait : bool
        Let the program wait for the plan of what moves.
    """

    capacity: int | str | None = None
    planner: str = "best-fit"
    min_length: int = 32
    limit: int | str | None = None
    swap: str = ",".join(IN_A_RUN)
    seconds: float = 30.0
    detect: str = "period"
    wait: bool = False

    @classmethod
    def of_environment(cls) -> Options:
        """Read `GPUMEM_CAPACITY`, `GPUMEM_LIMIT` and so on; `GPUMEM_WAIT` is 0 or 1."""
        variables: dict[str, Any] = {name: os.environ.get(_of_environment(name)) for name in cls.__dataclass_fields__}
        return checked(replace(cls(), **{name: value for name, value in variables.items() if value}), _of_environment)


def _of_environment(name: str) -> str:
    return f"GPUMEM_{name.upper()}"


def checked(options: Options, label: Callable[[str], str] = str) -> Options:
    """Refuse values that make no sense, by the name that `label` gives an option; return the rest as numbers."""
    amount(options.capacity or "100%", 2**40, label("capacity"))
    choice(options.planner, PLANNERS, label("planner"))
    if not str(options.min_length).isdecimal() or int(options.min_length) < 1:
        raise ValueError(f"{label('min_length')}: {options.min_length!r} is not an integer of 1 and more")
    if options.limit is not None:
        amount(options.limit, 2**40, label("limit"))
        if options.capacity is not None:
            raise ValueError(f"{label('capacity')}: a limit is set, {options.limit!r}, and that is for the pool too")
    for name in names(options.swap):
        planner_of(name, label("swap"))
    if not 0 < (seconds := number(options.seconds)) < inf:
        raise ValueError(f"{label('seconds')}: {options.seconds!r} is not a positive number of seconds")
    one_of(label("detect"), options.detect, (PERIOD, WRITES))
    if str(options.wait) not in WAITS:
        raise ValueError(f"{label('wait')}: {options.wait!r} is neither 0 nor 1")
    return replace(options, min_length=int(options.min_length), seconds=seconds, wait=WAITS[str(options.wait)])


def number(given: object) -> float:
    """Return a number, or what is none where there is none to be read.

    >>> number("0.5"), number("soon")
    (0.5, nan)
    """
    try:
        return float(str(given))
    except ValueError:
        return nan


def names(text: str) -> list[str]:
    """Split names with commas between.

    >>> names("heuristic, ilp")
    ['heuristic', 'ilp']
    """
    return [name.strip() for name in text.split(",")]
