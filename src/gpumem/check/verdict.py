"""Results held against the naive oracles of `gpumem.check`; what would not end in time is left out, and said so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumem import check
from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.base.names import name_of
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

if TYPE_CHECKING:
    pass

# About how many seconds they take, so that none is begun that would not end in time. Estimates that no result
# file has; not tuned. For each op or buffer, whichever are more; for each op; for each op or buffer again.
PLACEMENT, FLOW, BUDGET = 8e-6, 1.2e-4, 1e-7
TIMELINE = 7e-5  # for each op of each iteration
ORACLES = ("placement", "data_flow", "budget", "timeline")


@dataclass(frozen=True, slots=True)
class Checked:
    """Which oracles found nothing wrong, and which were not asked, with the reason.

    >>> print(Checked(("placement",), {"timeline": "it takes about 9.0 s, 2.0 s are left"}))
    checked: placement; not checked: timeline (it takes about 9.0 s, 2.0 s are left)
    """

    held: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"checked: {', '.join(self.held)}"] if self.held else []
        if self.left_out:
            parts.append("not checked: " + ", ".join(f"{name} ({why})" for name, why in self.left_out.items()))
        return "; ".join(parts)

    def report_to(self, tell: Callable[[str], None]) -> None:
        """Say so where oracles were left out."""
        if self.left_out:
            tell(str(self))


UNCHECKED = Checked((), dict.fromkeys(ORACLES, "not asked for"))


@contextmanager
def self_check() -> Iterator[None]:
    """What an oracle objects to in here is our fault, not bad input; bad input stays what it is."""
    try:
        yield
    except CheckError as error:
        raise RuntimeError(f"the result failed its own check, please report this: {error}") from error


@contextmanager
def blamed(**given: object) -> Iterator[None]:
    """Name the planner or placer of the user's own, where there is one, for what an oracle objects to in here."""
    yours = [
        f"{what} {name_of(function)}" for what, function in given.items() if callable(function) and not _ours(function)
    ]
    try:
        yield
    except RuntimeError as error:
        if not (yours and isinstance(error.__cause__, CheckError)):
            raise
        reason = f"the result failed its own check: {error.__cause__}; look into {' and '.join(yours)}"
        raise RuntimeError(reason) from error.__cause__


def _ours(function: object) -> bool:
    return str(getattr(getattr(function, "func", function), "__module__", "")).startswith("gpumem.")


@dataclass(frozen=True, slots=True)
class Oracle:
    """A check that can be asked for: its name, and about how many seconds it takes."""

    name: str
    needs: float
    ask: Callable[[], None]


def ask(oracles: Sequence[Oracle]) -> Checked:
    """Ask the oracles about a result, but for those that would take too long, or do.

    Raises
    ------
    RuntimeError
        One of them objects.
    """
    held, left_out = [], {}
    for oracle in oracles:
        if oracle.needs > (left := work.left()):
            left_out[oracle.name] = f"it takes about {oracle.needs:.1f} s, {left:.1f} s are left"
        else:
            try:
                with self_check():
                    oracle.ask()
                held.append(oracle.name)
            except work.TimeUp:
                left_out[oracle.name] = work.LATE
    return Checked(tuple(held), left_out)


@strict
def placed(trace: Trace, placement: Placement) -> None:
    """Hold a placement against the oracle."""
    with self_check():
        check.placement(trace, placement)
