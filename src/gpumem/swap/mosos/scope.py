"""What can be of use at all: the variables of the program that need not be 0."""

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
    `back`: bool[n, n]; `out_end`, `in_end`: int64[n, n], the stage in which a copy ends that begins with a stage, n for
    never; `plain`: whether the schedule has to be one that a plan can say.
    """

    deps: list[list[int]]
    users: list[list[int]]
    choice: list[list[int]]
    runs: Bool
    stays: Bool
    out: Bool
    back: Bool
    out_end: I64
    in_end: I64
    plain: bool

    @classmethod
    def of(cls, nodes: Nodes, rules: Rules) -> Scope:
        """Return what may be of use for `nodes` under `rules`; O(n^2) and the dependencies."""
        n, deps = len(nodes), [sorted(set(row)) for row in nodes.deps.tolist()]
        users = [[k for k in range(n) if j in deps[k]] for j in range(n)]
        stage, last, runs = np.arange(n), np.full(n, -1), np.eye(n, dtype=np.bool_)
        for j in reversed(range(n)):  # `last`: the last stage in which something may read its output
            last[j] = max((int(np.flatnonzero(runs[:, k])[-1]) for k in users[j]), default=-1)
            if rules.reruns and nodes.again[j]:
                runs[:, j] |= (stage > j) & (stage >= rules.since) & (stage <= last[j])
        stays = (stage[:, np.newaxis] > stage) & (stage[:, np.newaxis] <= last)
        out_end, in_end = nodes.ends(nodes.out_ns), nodes.ends(nodes.in_ns)
        may = stays & nodes.moves & rules.copies
        out, back = (may & _in_a_gap(users, end) if rules.plain else may for end in (out_end, in_end))
        out, back = _of_use(out, back & (in_end < last), out_end)
        return cls(deps, users, _choice(nodes, rules), runs, stays, out, back, out_end, in_end, rules.plain)

    @property
    def last_uses(self) -> I64:
        """The last node that reads the output of each, or makes it: int64[n]."""
        return np.array([max(row, default=j) for j, row in enumerate(self.users)], np.int64)

    def flying(self, begins: Bool, end: I64, t: int, j: int) -> list[int]:
        """The stages from which a copy of j is under way in stage t."""
        x = np.flatnonzero(begins[: t + 1, j] & (end[: t + 1, j] >= t))
        return x.tolist()


def _in_a_gap(users: list[list[int]], end: I64) -> Bool:
    """Whether a copy lies between two uses that follow one another."""
    n = len(users)
    inside = np.zeros((n, n), np.bool_)
    for j, row in enumerate(users):
        for a, b in pairwise([j, *row]):
            inside[a + 1 : b, j] = end[a + 1 : b, j] < b
    return inside


def _of_use(out: Bool, back: Bool, out_end: I64) -> tuple[Bool, Bool]:
    """Copies back that some copy out ends before, and copies out that end before one of those."""
    n, stage = len(out), np.arange(len(out))[:, np.newaxis]
    earliest = np.where(out, out_end, n).min(axis=0, initial=n)
    back = back & (stage > earliest)
    latest = np.where(back, stage, -1).max(axis=0, initial=-1)
    return out & (out_end < latest), back


def _choice(nodes: Nodes, rules: Rules) -> list[list[int]]:
    """The implementations of each node but those that another one is as good as in time and in workspace."""
    if rules.by is not None:
        return [[int(v)] for v in rules.by]
    choice = []
    for row in nodes.implementations:
        order = sorted(range(len(row)), key=lambda v: (row[v].time, row[v].workspace))
        best = [v for i, v in enumerate(order) if all(row[v].workspace < row[w].workspace for w in order[:i])]
        choice.append(sorted(best))
    return choice
