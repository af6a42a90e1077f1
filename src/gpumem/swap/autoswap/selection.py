"""AutoSwap's selection: take candidates in the order of their scores until the load fits (section IV-D)."""

from __future__ import annotations

import numpy as np

from gpumem._jit import jit
from gpumem.columns import I64, Bool
from gpumem.swap.accounts import _tree
from gpumem.swap.autoswap.scores import Candidates
from gpumem.swap.gaps import Gaps, values, without


def select(c: Candidates, order: I64, limit: int, pinned: int) -> tuple[I64, I64]:
    """Take candidates in `order` until the load is at most `limit`, or there are no more.

    Parameters
    ----------
    c : Candidates
    order : int64[m]
        Positions in `c`, the best first.
    limit, pinned : int
        Bytes on the device and, pinned, on the host.

    Returns
    -------
    chosen : int64[...]
        The taken ones, ascending.
    load : int64[n]
        What they leave, each absent over its whole gap.

    Notes
    -----
    O((n + m) log n). A gap that straddles no op above the limit at its turn is passed over (the paper would
    take it and move its bytes for nothing), and so is one that would exceed the pinned budget. The host holds a
    value from its copy-out through the last copy-in that needs it, also between two gaps that share one copy-out.
    """
    held = np.maximum(c.host, np.roll(c.host, 1))  # at the copies right before each op
    value, start, stop = host_spans(c.gaps, len(c.load))
    taken = np.zeros(len(c), np.bool_)
    _take(
        order,
        c.gaps.after,
        c.gaps.before,
        c.size,
        value,
        start,
        stop,
        *_tree.build(c.load),
        *_tree.build(held),
        len(c.load),
        limit,
        pinned,
        taken,
    )
    chosen = np.flatnonzero(taken)
    return chosen, without(c.load, c.gaps.where(chosen), c.size[chosen])


def host_spans(gaps: Gaps, n: int) -> tuple[I64, I64, I64]:
    """Return for each gap which value the host keeps in it, and where: right before the ops `[start, stop)`.

    Gaps of a buffer share a value while nothing writes it. The host holds it from the first of those that are
    swapped through the last, so `start` and `stop` count on from where that value's first gap can begin. A value
    that lives for ever and is never written stays on the host all the time.
    """
    turns, constant = gaps.forever & (gaps.writes > 0), gaps.forever & (gaps.writes == 0)
    _, value = np.unique(np.stack([gaps.buffer, values(gaps)]), axis=1, return_inverse=True)
    first = np.concatenate([[True], gaps.buffer[1:] != gaps.buffer[:-1]]) if len(gaps) else np.zeros(0, np.bool_)
    begin = gaps.after[np.maximum.accumulate(np.where(first, np.arange(len(gaps)), 0))]
    life = (gaps.after - begin) % n + np.where(turns & (gaps.epoch == 0), n, 0)  # before the first write: last turn's
    start = begin + life + 1
    return (
        value.reshape(-1).astype(np.int64),
        np.where(constant, 0, start),
        np.where(constant, n, start + gaps.before - gaps.after),
    )


@jit
def _take(
    order: I64,
    after: I64,
    before: I64,
    size: I64,
    value: I64,
    start: I64,
    stop: I64,
    top: I64,
    add: I64,
    host_top: I64,
    host_add: I64,
    n: int,
    limit: int,
    pinned: int,
    taken: Bool,
) -> None:
    """Mark the candidates that are taken; `top`, `host_top` are trees of the load and of the host's."""
    count = len(value)
    kept_from, kept_to = np.zeros(count, np.int64), np.zeros(count, np.int64)  # of each value, empty at first
    for k in order:
        if top[1] <= limit:
            return
        v = value[k]
        if kept_from[v] == kept_to[v]:
            a, b, c, d = start[k], stop[k], stop[k], stop[k]
        else:
            a, b = min(kept_from[v], start[k]), kept_from[v]
            c, d = kept_to[v], max(kept_to[v], stop[k])
        if _tree.largest_around(top, add, n, after[k] + 1, before[k]) <= limit:
            continue
        if (
            max(_tree.largest_around(host_top, host_add, n, a, b), _tree.largest_around(host_top, host_add, n, c, d))
            + size[k]
            > pinned
        ):
            continue
        _tree.add_around(top, add, n, after[k] + 1, before[k], -size[k])
        _tree.add_around(host_top, host_add, n, a, b, size[k])
        _tree.add_around(host_top, host_add, n, c, d, size[k])
        kept_from[v], kept_to[v] = a, d
        taken[k] = True
