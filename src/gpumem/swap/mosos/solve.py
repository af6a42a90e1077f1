"""The best schedule within a limit, and the least limit that has a schedule, by the integer program."""

from __future__ import annotations

from math import inf

from gpumem.deadline import NEVER, Deadline
from gpumem.swap.mosos.nodes import Nodes
from gpumem.swap.mosos.rules import Proved, Rules


def solve(
    nodes: Nodes,
    limit: int,
    rules: Rules = Rules(),  # noqa: B008  frozen
    *,
    until: Deadline = NEVER,
    best: float = inf,
    gap: float = 0.0,
) -> Proved:
    """Return the schedule of least time within `limit` bytes, as far as it is found until the deadline.

    Parameters
    ----------
    nodes : Nodes
    limit : int
        Bytes.
    rules : Rules
        What the schedule may do.
    until : Deadline
    best : float
        ns: a value that a schedule has to be below to be of use.
    gap : float
        How far from the best possible a schedule may be, as a fraction of its value.
    """
    raise NotImplementedError
