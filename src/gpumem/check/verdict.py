"""Results held against the naive oracles of `gpumem.check`; what would take hours is left out, and said so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumem import check
from gpumem.base.arguments import strict
from gpumem.base.deadline import Deadline
from gpumem.base.errors import CheckError
from gpumem.base.names import name_of
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

if TYPE_CHECKING:
    pass

QUADRATIC = 20_000  # ops or buffers that quadratic checks are run on
# About how many seconds they take, so that none is begun that would not end in time.
PLACEMENT, FLOW = 4e-6, 1.2e-4  # for each buffer; for each op
BUDGET, TIMELINE = 1e-8, 2e-7  # for each pair of ops or buffers
ORACLES = ("placement", "data_flow", "budget", "timeline")


@dataclass(frozen=True, slots=True)
class Checked:
    """Which oracles found nothing wrong, and which were not asked, with the reason.

    >>> print(Checked(("placement",), {"timeline": "30000 ops are too many"}))
    checked: placement; not checked: timeline (30000 ops are too many)
    """

    held: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"checked: {', '.join(self.held)}"] if self.held else []
        if self.left_out:
            parts.append("not checked: " + ", ".join(f"{name} ({why})" for name, why in self.left_out.items()))
        return "; ".join(parts)

    def told(self, tell: Callable[[str], None]) -> None:
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
    yours = [f"{what} {name_of(f)}" for what, f in given.items() if callable(f) and not _ours(f)]
    try:
        yield
    except RuntimeError as error:
        if not (yours and isinstance(error.__cause__, CheckError)):
            raise
        told = f"the result failed its own check: {error.__cause__}; look into {' and '.join(yours)}"
        raise RuntimeError(told) from error.__cause__


def _ours(function: object) -> bool:
    return str(getattr(getattr(function, "func", function), "__module__", "")).startswith("gpumem.")


@dataclass(frozen=True, slots=True)
class Oracle:
    """A check that can be asked for: its name, about how many seconds it takes, whether they grow with the square."""

    name: str
    needs: float
    quadratic: bool
    ask: Callable[[], None]


def ask(oracles: Sequence[Oracle], size: int, until: Deadline) -> Checked:
    """Ask the oracles about a result of `size` ops or buffers, but for those that would take too long.

    Raises
    ------
    RuntimeError
        One of them objects.
    """
    held, left_out = [], {}
    for oracle in oracles:
        if oracle.quadratic and size > QUADRATIC:
            left_out[oracle.name] = f"{size} ops or buffers are too many"
        elif oracle.needs > (left := until.left()):
            left_out[oracle.name] = f"it takes about {oracle.needs:.1f} s, {left:.1f} s are left"
        else:
            with self_check():
                oracle.ask()
            held.append(oracle.name)
    return Checked(tuple(held), left_out)


@strict
def placed(trace: Trace, placement: Placement) -> None:
    """Hold a placement against the oracle."""
    with self_check():
        check.placement(trace, placement)
