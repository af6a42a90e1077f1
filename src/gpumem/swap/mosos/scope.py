"""The variables of the program that may be other than 0 in a schedule of use.

Nothing is lost by the others: a copy that ends too late, an output that no later run can read, and an implementation
that another one beats in time and workspace make no schedule better.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpumem.swap.mosos.problem import Nodes, Rules
from gpumem.trace import I64, Bool


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """For n nodes, stages by nodes: where a node may run, its output be kept, a copy begin and end.

    `deps`, `users`: of each node, ascending; `choice`: its implementations that may be of use; `runs`, `stays`, `out`,
    `back`: bool[n, n], a copy out and one back by the stage that names it; `out_first`, `out_end`, `in_end`:
    int64[n, n], the stages through which that holds memory, a copy back from its own one on, n for never;
    `rules`: what the schedule may do.

    A copy is named by the stage with which it begins. Where stages wait, that of a copy out is known, and it is named
    by the stage at whose end it is due: that of the use itself if nothing runs meanwhile. A copy back that begins
    behind the last stage before the next use is named by the stage of that use, before which it ends.
    """

    deps: list[list[int]]
    users: list[list[int]]
    choice: list[list[int]]
    runs: Bool
    stays: Bool
    out: Bool
    back: Bool
    out_first: I64
    out_end: I64
    in_end: I64
    rules: Rules

    @classmethod
    def of(cls, nodes: Nodes, rules: Rules) -> Scope:
        """Return what may be of use for `nodes` under `rules`; O(n^2) and the dependencies."""
        n, deps = len(nodes), [sorted(set(deps_of_node)) for deps_of_node in nodes.deps.tolist()]
        users = [[reader for reader in range(n) if node in deps[reader]] for node in range(n)]
        stage, last, runs = np.arange(n), np.full(n, -1), np.eye(n, dtype=np.bool_)
        for node in reversed(range(n)):  # `last`: the last stage in which something may read its output
            last[node] = max((int(np.flatnonzero(runs[:, reader])[-1]) for reader in users[node]), default=-1)
            if rules.recompute and nodes.recomputable[node]:
                runs[:, node] |= (stage > node) & (stage >= rules.since) & (stage <= last[node])
        stays = (stage[:, np.newaxis] > stage) & (stage[:, np.newaxis] <= last)
        is_movable = nodes.offloadable & rules.copies
        if rules.waits:
            out, back, out_first, out_end, in_end = _due(users)
            out, back = out & is_movable, back & is_movable
        else:
            out_end, in_end = nodes.ends(nodes.out_ns), nodes.ends(nodes.in_ns)
            out_first = np.broadcast_to(stage[:, np.newaxis], (n, n))
            out, back = (
                stays & is_movable & (_in_a_gap(users, end) if rules.plain else True) for end in (out_end, in_end)
            )
        out, back = _of_use(out, back & (in_end < last), out_end)
        return cls(
            deps,
            users,
            _choice(nodes, rules),
            runs=runs,
            stays=stays,
            out=out,
            back=back,
            out_first=out_first,
            out_end=out_end,
            in_end=in_end,
            rules=rules,
        )

    @property
    def last_uses(self) -> I64:
        """The last node that reads the output of each, or makes it: int64[n]."""
        return np.array([max(readers, default=node) for node, readers in enumerate(self.users)], np.int64)

    def being_offloaded(self, out: Bool, stage: int) -> Bool:
        """Which of these copies out hold what they copy in stage t: bool[n, n]."""
        return out & (self.out_first <= stage) & (self.out_end >= stage)

    def landing(self, back: Bool, stage: int) -> Bool:
        """Which of these copies back hold memory in stage t: bool[n, n]."""
        return back & (np.arange(len(back))[:, np.newaxis] <= stage) & (self.in_end >= stage)


def _in_a_gap(users: list[list[int]], end: I64) -> Bool:
    """Whether a copy lies between two uses that follow one another."""
    n = len(users)
    inside = np.zeros((n, n), np.bool_)
    for node, readers in enumerate(users):
        for use, next_use in pairwise([node, *readers]):
            inside[use + 1 : next_use, node] = end[use + 1 : next_use, node] < next_use
    return inside


def _due(users: list[list[int]]) -> tuple[Bool, Bool, I64, I64, I64]:
    """Where stages wait: the copies out and back that there are, and `out_first`, `out_end`, `in_end`.

    Of a gap between the uses a and b, copies out are due at the end of a, a + 1, .. b - 2, and copies back begin with
    a + 2, .. b - 1, or behind stage b - 1; so that the output is off the device in one stage at least.
    """
    n = len(users)
    out, back = np.zeros((n, n), np.bool_), np.zeros((n, n), np.bool_)
    first, in_end = np.full((n, n), n), np.full((n, n), n)
    for node, readers in enumerate(users):
        for use, next_use in pairwise([node, *readers]):
            out[use : next_use - 1, node] = back[use + 2 : next_use + 1, node] = True
            first[use : next_use - 1, node], in_end[use + 2 : next_use + 1, node] = use + 1, next_use - 1
    return out, back, first, np.broadcast_to(np.arange(n)[:, np.newaxis], (n, n)), in_end


def _of_use(out: Bool, back: Bool, out_end: I64) -> tuple[Bool, Bool]:
    """Only copies back that some copy out ends before, and copies out that end before one of those."""
    n, stage = len(out), np.arange(len(out))[:, np.newaxis]
    earliest = np.where(out, out_end, n).min(axis=0, initial=n)
    back = back & (stage > earliest)
    latest = np.where(back, stage, -1).max(axis=0, initial=-1)
    return out & (out_end < latest), back


def _choice(nodes: Nodes, rules: Rules) -> list[list[int]]:
    """The implementations of each node but those that another one is as good as in time and in workspace."""
    if rules.by is not None:
        return [[int(index)] for index in rules.by]
    choice = []
    for variants in nodes.implementations:
        order = sorted(range(len(variants)), key=lambda index: (variants[index].time, variants[index].workspace))
        best = [
            index
            for rank, index in enumerate(order)
            if all(variants[index].workspace < variants[faster].workspace for faster in order[:rank])
        ]
        choice.append(sorted(best))
    return choice
