"""What Numba's memory manager is told, by the environment or by `emm.configure`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpumem.names import choice
from gpumem.pool.planners import PLANNERS
from gpumem.units import amount


@dataclass(frozen=True, slots=True)
class Options:
    """What `configure` was told, or the environment.

    Attributes
    ----------
    capacity : int, str or None
        Bytes of the pool at most: a number, `"1GiB"`, `"80%"` of the device; None: all of it, or where the
        device cannot map memory as it is needed, 90 % of what is free.
    planner : str
        Who places the iteration; a name in `gpumem.pool.planners.PLANNERS`.
    min_length : int
        Fewest requests of an iteration, so that a short loop is not taken for one.
    """

    capacity: int | str | None = None
    planner: str = "best-fit"
    min_length: int = 32

    @classmethod
    def of_environment(cls) -> Options:
        """Read `GPUMEM_CAPACITY`, `GPUMEM_PLANNER` and `GPUMEM_MIN_LENGTH`."""
        told: dict[str, Any] = {name: os.environ.get(_of_environment(name)) for name in cls.__dataclass_fields__}
        return checked(replace(cls(), **{name: value for name, value in told.items() if value}), _of_environment)


def _of_environment(name: str) -> str:
    return f"GPUMEM_{name.upper()}"


def checked(options: Options, label: Callable[[str], str] = str) -> Options:
    """Refuse what makes no sense, by the name under which it was told."""
    amount(options.capacity or "100%", 2**40, label("capacity"))
    choice(options.planner, PLANNERS, label("planner"))
    if not str(options.min_length).isdecimal() or int(options.min_length) < 1:
        raise ValueError(f"{label('min_length')}: {options.min_length!r} is not an integer of 1 and more")
    return replace(options, min_length=int(options.min_length))
