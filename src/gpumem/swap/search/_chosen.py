"""From a plan to what a search has chosen of it, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gpumem.swap.plan import Hold, Plan, Recompute
from gpumem.swap.search._recompute_state import PIECES, Decided, Replays


def chosen_of(r: Replays, rows: Mapping[tuple[int, int], int], plan: Plan) -> Decided:
    """Return what a plan drops and holds, as far as a search can say it; `rows`: of gaps, by buffer and first access.

    It cannot say of a value that it stays as it was before its last change in place.
    """
    c, v = Decided.of(r), r.made.origins
    for d in plan.decisions:
        if isinstance(d, Recompute) and (k := rows.get((d.buffer, d.after), -1)) >= 0 and r.lasts[k]:
            c.at[k] = d.at
    for d in (d for d in plan.decisions if isinstance(d, Hold)):
        k = rows.get((d.buffer, d.after), -1)
        if d.at < 0 and k >= 0 and c.at[k]:
            c.later[k] = d.until
        elif d.at < 0 and d.after in (-1, v.last_access(d.buffer)):
            c.until[d.buffer] = d.until if d.until >= r.made.end[d.buffer] else -1
        elif d.at >= 0 and c.pieces[0] < PIECES:
            row = v.after(d.buffer, d.after)
            mine = np.arange(r.value_of[d.buffer], r.value_of[d.buffer + 1])
            mine = mine[(r.made.begins[mine] == v.left.first[row]) & (r.made.ends[mine] == v.left.stop[row])]
            for value in mine.tolist():
                k = int(c.pieces[0])
                c.value[k], c.start[k], c.stop[k], c.pieces[0] = value, d.at, d.until, k + 1
    return c


def decisions_of(r: Replays, c: Decided) -> Iterator[Recompute | Hold]:
    """Yield what a choice stands for, but for the ways of ops."""
    m, n = r.made, len(r.made.duration)
    mine = np.flatnonzero(c.at)
    columns = (m.buffer[mine], m.after[mine], m.before[mine], c.at[mine])
    yield from (Recompute(*row) for row in zip(*(column.tolist() for column in columns)))
    later = np.flatnonzero(c.later)
    yield from map(Hold, m.buffer[later].tolist(), c.later[later].tolist(), m.after[later].tolist())
    held = np.flatnonzero(c.until >= 0)
    yield from map(Hold, held.tolist(), np.minimum(c.until[held], n).tolist())
    pieces = slice(0, int(c.pieces[0]))
    value = c.value[pieces]
    after = m.origins.writer[m.ends[value] - 1]
    columns = (m.holder[value], c.stop[pieces], after, c.start[pieces])
    yield from (Hold(*row) for row in zip(*(column.tolist() for column in columns)))
