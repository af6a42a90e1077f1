"""Naive oracles of schedules that wait: how long by a linear program, the bytes by hand, the best by trying all.

They share no code with what they judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf

import numpy as np
from scipy.optimize import linprog

from gpumem.swap.mosos import Nodes, Schedule


@dataclass(frozen=True)
class Away:
    """Output `j` is off the device between its uses `a` and `b`: from the end of stage `due` to stage `begin`."""

    j: int
    a: int
    b: int
    due: int
    begin: int
    copied: bool  # whether this is its copy out


def least_wait(nodes: Nodes, run: list[int], away: list[Away], duplex: bool) -> float:
    """The least total wait, ns, by a linear program: what each engine copies in each half of a stage.

    Half 2 t is the runs of stage t, half 2 t + 1 its wait.
    """
    n, copies = len(run), []
    for x in away:
        if x.copied:
            copies.append((0, int(nodes.out_ns[x.j]), 2 * x.a + 1, 2 * x.due + 1))
        copies.append((1, int(nodes.in_ns[x.j]), 2 * x.b - 1 if x.begin == x.b else 2 * x.begin, 2 * x.b - 1))
    parts = [(c, half) for c, (_, _, first, last) in enumerate(copies) for half in range(first, last + 1)]
    cost = [0.0] * len(parts) + [1.0] * n
    rows, right = [], []
    for engine in (0, 1) if duplex else (None,):
        for half in range(2 * n):
            row = [float(h == half and engine in (None, copies[c][0])) for c, h in parts] + [0.0] * n
            row[len(parts) + half // 2] = -float(half % 2)
            rows.append(row)
            right.append(0 if half % 2 else run[half // 2])
    exact = [[float(c == k) for c, _ in parts] + [0.0] * n for k in range(len(copies))]
    solved = linprog(cost, rows, right, exact or None, [ns for _, ns, _, _ in copies] or None)
    return float(solved.fun) if solved.status == 0 else inf


def choices(nodes: Nodes) -> Iterator[list[Away]]:
    """All ways to have outputs away, each copied out once at most, before it is first away."""
    n = len(nodes)
    users = [[k for k in range(n) if j in nodes.deps[k].tolist()] for j in range(n)]
    gaps = [(j, a, b) for j in range(n) if nodes.offloadable[j] for a, b in pairwise([j, *users[j]])]
    ways: list[list[Away | None]] = [
        [None, *(Away(j, a, b, due, x, False) for due in range(a, b - 1) for x in range(due + 2, b + 1))]
        for j, a, b in gaps
    ]
    for some in product(*ways):
        out: set[int] = set()
        chosen = []
        for x in filter(None, some):
            chosen.append(replace(x, copied=x.j not in out))
            out.add(x.j)
        yield chosen


def memory_of(nodes: Nodes, away: list[Away]) -> list[int]:
    """The bytes in use in each stage, without workspace: no node is recomputed."""
    n = len(nodes)
    last = [max([k for k in range(n) if j in nodes.deps[k].tolist()], default=j) for j in range(n)]
    used = []
    for t in range(n):
        there = [j for j in range(t + 1) if last[j] >= t or j == t]
        gone = {x.j for x in away if x.due < t < x.begin}
        used.append(int(nodes.held[t]) + sum(int(nodes.size[j]) for j in there if j not in gone))
    return used


def best(nodes: Nodes, limit: int, moved: float, duplex: bool) -> float:
    """The least value of all schedules without recomputations, ns; infinite without any."""
    found = inf
    for away in choices(nodes):
        run = []
        for row, used in zip(nodes.implementations, memory_of(nodes, away)):
            run.append(min((x.time for x in row if used + x.workspace <= limit), default=-1))
        if min(run) >= 0:
            bytes_ = sum(int(nodes.size[x.j]) * (1 + x.copied) for x in away)
            found = min(found, sum(run) + least_wait(nodes, run, away, duplex) + moved * bytes_)
    return found


def check(nodes: Nodes, schedule: Schedule, *, duplex: bool) -> None:
    """Assert that a schedule that waits holds and waits for what it says, and reads what is there."""
    n = len(nodes)
    users = [[k for k in range(n) if j in nodes.deps[k].tolist()] for j in range(n)]
    runs = list(zip(schedule.stage.tolist(), schedule.node.tolist(), schedule.by.tolist()))
    away = []
    for x, j in schedule.back:
        a, b = next((a, b) for a, b in pairwise([j, *users[j]]) if a < x <= b)
        gone = [t for t in range(a + 1, b) if not schedule.resident[t, j]]
        copied = [t for t, k in schedule.out if k == j and t == a + 1]
        assert gone and gone == list(range(gone[0], b)) and gone[0] <= x and schedule.resident[b, j]
        away.append(Away(j, a, b, gone[0] - 1, x, bool(copied)))
    assert all(min((x.a for x in away if x.j == j), default=n) == t - 1 for t, j in schedule.out)
    assert {x.j for x in away} == {j for _, j in schedule.out}
    spent = [sum(nodes.implementations[j][v].time for s, j, v in runs if s == t) for t in range(n)]
    assert sum(spent) == schedule.time
    assert abs(least_wait(nodes, spent, away, duplex) - schedule.wait) < 1e-6 * max(schedule.time, 1)
    coming = np.zeros((n, n), np.bool_)
    for x in away:
        coming[x.begin : x.b, x.j] = True
    at = 0
    for t in range(n):
        order = [row for row in runs if row[0] == t]
        device = {j for j in range(n) if schedule.resident[t, j]}
        stay = device | {j for j in range(n) if coming[t, j]}
        for place, (_, k, v) in enumerate(order):
            later = {j for row in order[place:] for j in nodes.deps[row[1]].tolist()}
            assert set(nodes.deps[k].tolist()) <= device
            if k == t:
                tail = {
                    j for j in stay if max(users[j], default=j) < t and (t + 1 == n or not schedule.resident[t + 1, j])
                }
                stay -= tail
            device.add(k)
            held = stay | {j for j in device if j in later or j == k or (t + 1 < n and schedule.resident[t + 1, j])}
            size = sum(int(nodes.size[j]) for j in held)
            assert int(nodes.held[t]) + size + nodes.implementations[k][v].workspace <= schedule.memory[at]
            at += 1
