"""AutoSwap's selection: take candidates in the order of their scores until the load fits (section IV-D)."""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import jit
from gpumem.swap.autoswap.scores import Candidates
from gpumem.swap.facts import segment_tree as _tree
from gpumem.swap.facts.pinned import Pinned, Values, take
from gpumem.swap.plan.gaps import without
from gpumem.trace import I64


def select(c: Candidates, order: I64, limit: int, host: Pinned) -> tuple[I64, I64]:
    """Take candidates in `order` until the load is at most `limit`, or there are no more.

    Parameters
    ----------
    c, limit
        The gaps, and bytes on the device.
    order : int64[m]
        Positions in `c`, the best first.
    host : Pinned
        The account of `c.gaps`, with nothing taken yet; what is taken is noted there.

    Returns
    -------
    chosen : int64[...]
        The taken ones, ascending.
    load : int64[n]
        What they leave, each absent over its whole gap.

    Notes
    -----
    O((n + m) log n). `autoswap` says which candidates are passed over.
    """
    tree, budget = _tree.build(c.load), host.budget
    _take(order, c.gaps.after, c.gaps.before, c.size, *tree, host.columns, len(c.load), limit, budget)
    chosen = np.flatnonzero(host.columns.taken)
    return chosen, without(c.load, c.gaps.where(chosen), c.size[chosen])


@jit
def _take(
    order: I64, after: I64, before: I64, size: I64, top: I64, add: I64, host: Values, n: int, limit: int, pinned: int
) -> None:
    """Take candidates into the account of the host; `top`, `add` are the tree of the load."""
    for k in order:
        if top[1] <= limit:
            return
        if _tree.largest_around(top, add, n, after[k] + 1, before[k]) <= limit:
            continue
        if take(host, n, pinned, k, after[k], before[k]):
            _tree.add_around(top, add, n, after[k] + 1, before[k], -size[k])
