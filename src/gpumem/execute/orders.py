"""Legal orders: which of the ops that could run next does.

An order is a function from the ops at the heads of their streams that wait for nothing any more (numbers
in issue order, ascending) to one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

Order = Callable[[list[int]], int]


def in_issue_order(ready: list[int]) -> int:
    """Run what was issued first.

    >>> in_issue_order([3, 8])
    3
    """
    return ready[0]


def shuffled(seed: int) -> Order:
    """Return an order drawn from `seed`, in bursts: for a while one stream runs as far as it can, then another.

    Drawing evenly at each step would hardly ever hold a copy back for long, and only long delays show what
    is not ordered.

    >>> order = shuffled(7)
    >>> [order([3, 8]) for _ in range(30)].count(3)
    3
    """
    rng = random.Random(seed)
    hold = 0
    favour = 0.0

    def order(ready: list[int]) -> int:
        nonlocal hold, favour
        if hold == 0:
            hold, favour = rng.choice((1, 2, 5, 20, 100)), rng.random()
        hold -= 1
        return ready[int(favour * len(ready))]

    return order


def late(held: Collection[int]) -> Order:
    """Return the order that holds the ops numbered `held` back as long as anything else can run.

    >>> late({3})([3, 8]), late({3})([3])
    (8, 3)
    """

    def order(ready: list[int]) -> int:
        return next((k for k in ready if k not in held), ready[0])

    return order
