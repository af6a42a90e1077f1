"""Naive oracles of MO-SOS: a replay of a schedule by hand, and the best schedule by trying all. They share no code with
what they judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf

import numpy as np

from gpumem.swap.mosos import Implementation, Nodes, Rules, Schedule


def random_nodes(rng: np.random.Generator, n: int, *, shape: str = "any") -> Nodes:
    """Small nodes: `any` reads one or two before it; in a `valley` the late ones read the early ones, copies are quick,
    and the nodes in the middle hold a lot.
    """

    def number(most: int) -> int:
        return int(rng.integers(0, most + 1))

    implementations = [
        [Implementation(f"v{v}", 1 + number(8), number(6)) for v in range(1 + number(1))] for _ in range(n)
    ]
    size, held, out_ns, in_ns = ([number(most) for _ in range(n)] for most in (6, 2, 12, 12))
    again, moves = ([bool(x) for x in rng.random(n) < 0.75] for _ in range(2))
    deps = [sorted({int(j) for j in rng.integers(0, k, min(k, 1 + number(1)))}) if k else [] for k in range(n)]
    if shape == "valley":
        deps = [sorted({max(k - 1, 0), *([number(n - 1 - k)] if 2 * k > n else [])} - {k}) for k in range(n)]
        size = [number(12 if 3 * k < n else 3) for k in range(n)]
        held = [number(16) * (1 < k < n - 2) for k in range(n)]
        out_ns, in_ns = ([number(4) for _ in range(n)] for _ in range(2))
        again, moves = ([bool(x) for x in rng.random(n) < share] for share in (0.3, 0.85))
    return Nodes.make(
        implementations,
        deps,
        [1 + x for x in size],
        held=held,
        recomputable=again,
        offloadable=moves,
        out_ns=out_ns,
        in_ns=in_ns,
    )


class World:
    """What the oracles know of nodes, in lists."""

    def __init__(self, nodes: Nodes) -> None:
        self.n = len(nodes)
        self.deps = [set(row) for row in nodes.deps.tolist()]
        self.users = [[k for k in range(self.n) if j in self.deps[k]] for j in range(self.n)]
        self.size, self.held = nodes.size.tolist(), nodes.held.tolist()
        self.out_ns, self.in_ns = nodes.out_ns.tolist(), nodes.in_ns.tolist()
        self.again, self.moves = nodes.recomputable.tolist(), nodes.offloadable.tolist()
        self.by = nodes.implementations
        self.shortest = [min(x.time for x in row) for row in self.by]

    def end(self, stage: int, copy_ns: int) -> int:
        """The stage in which a copy ends that begins with `stage`."""
        while stage < self.n:
            copy_ns -= self.shortest[stage]
            if copy_ns <= 0:
                return stage
            stage += 1
        return self.n

    def bytes(self, some: Iterable[int]) -> int:
        return sum(self.size[j] for j in some)


def replay(nodes: Nodes, schedule: Schedule, *, duplex: bool = True, plain: bool = False) -> tuple[list[int], int]:
    """Carry a schedule out by hand; return the bytes in use at each run, and the time of all runs.

    `plain`: what is there when a stage begins stays through recomputations, and goes before or with the recorded run.
    """
    world = World(nodes)
    runs: list[list[tuple[int, int]]] = [[] for _ in range(world.n)]
    for t, j, v in zip(schedule.stage.tolist(), schedule.node.tolist(), schedule.by.tolist()):
        runs[t].append((j, v))
    device, host = set[int](), set[int]()
    leaving, landing = dict[int, int](), dict[int, int]()
    memory, time = [], 0
    for t in range(world.n):
        assert device == set(np.flatnonzero(schedule.resident[t]).tolist()), f"stage {t}"
        for _, j in (copy for copy in schedule.out if copy[0] == t):
            assert j in device and j not in host and j not in leaving and world.moves[j], f"out of {j} in stage {t}"
            leaving[j] = world.end(t, world.out_ns[j])
        for _, j in (copy for copy in schedule.back if copy[0] == t):
            assert j in host and j not in landing, f"back of {j} in stage {t}"
            landing[j] = world.end(t, world.in_ns[j])
        assert max(len(leaving), len(landing)) <= 1 and (duplex or len(leaving) + len(landing) <= 1), f"stage {t}"
        after = set(np.flatnonzero(schedule.resident[t + 1]).tolist()) if t + 1 < world.n else set[int]()
        began, order = set(device), [j for j, _ in runs[t]]
        assert order == sorted(set(order)) and order[-1] == t, f"stage {t}"
        for place, (k, v) in enumerate(runs[t]):
            assert world.deps[k] <= device and k not in device and (k == t or world.again[k]), f"node {k} in stage {t}"
            if plain and k == t:
                kept = {i for i in after if landing.get(i) != t} | set(leaving)
                device -= {i for i in began - kept if max(world.users[i], default=i) < t}
            device.add(k)
            memory.append(world.held[t] + world.bytes(device) + world.bytes(landing) + world.by[k][v].workspace)
            time += world.by[k][v].time
            read = {i for x in order[place + 1 :] for i in world.deps[x]}
            kept = {i for i in after if landing.get(i) != t}
            device &= read | kept | set(leaving) | (began if plain and k < t else set())
        for j in [j for j, end in landing.items() if end == t]:
            device.add(j)
            del landing[j]
        for j in [j for j, end in leaving.items() if end == t]:
            host.add(j)
            del leaving[j]
            device -= {j} - after
    assert not leaving and not landing
    return memory, time


@dataclass(frozen=True)
class State:
    """Where a search is when a stage begins; `story` of each node: what it did since its last recorded use."""

    device: frozenset[int]
    host: frozenset[int]
    leaving: tuple[tuple[int, int], ...]
    landing: tuple[tuple[int, int], ...]
    story: tuple[tuple[tuple[bool, bool, bool, bool], ...], ...]


def least_value(nodes: Nodes, limit: float, rules: Rules, moved: float, *, memory: bool = False) -> float:
    """The least objective of all schedules, by trying all; `memory`: the least bytes. Infinite without any."""
    world = World(nodes)
    return Search(world, limit, rules, moved, memory, rules.by).run()


class Search:
    def __init__(
        self, world: World, limit: float, rules: Rules, moved: float, memory: bool, by: Iterable[int] | None
    ) -> None:
        self.world, self.limit, self.rules, self.moved, self.memory = world, limit, rules, moved, memory
        self.by = None if by is None else [int(v) for v in by]

    def run(self) -> float:
        n = self.world.n
        best = {State(frozenset(), frozenset(), (), (), ((),) * n): 0.0}
        for t in range(n):
            after: dict[State, float] = {}
            for state, value in best.items():
                for cost, new in self.steps(t, state):
                    total = max(value, cost) if self.memory else value + cost
                    if total < after.get(new, inf):
                        after[new] = total
            best = after
        return min(best.values(), default=inf)

    def steps(self, t: int, state: State) -> Iterator[tuple[float, State]]:
        for out, back in self.copies(t, state):
            w = self.world
            leaving = dict(state.leaving) | ({} if out is None else {out: w.end(t, w.out_ns[out])})
            landing = dict(state.landing) | ({} if back is None else {back: w.end(t, w.in_ns[back])})
            if max([*leaving.values(), *landing.values()], default=0) >= w.n - (t < w.n - 1):
                continue  # it ends too late to be of use
            moved = self.moved * sum(w.size[j] for j in (out, back) if j is not None)
            for cost, runs, keep in self.stage(t, state, leaving, landing):
                story = self.told(t, state, runs, keep, out, back)
                if story is None:
                    continue
                arrived = {j for j, end in landing.items() if end == t}
                new = State(
                    frozenset(keep | arrived),
                    state.host | {j for j, end in leaving.items() if end == t},
                    tuple(sorted((j, end) for j, end in leaving.items() if end > t)),
                    tuple(sorted((j, end) for j, end in landing.items() if end > t)),
                    story,
                )
                yield cost if self.memory else cost + moved, new

    def copies(self, t: int, state: State) -> Iterator[tuple[int | None, int | None]]:
        w, busy = self.world, {j for j, _ in state.leaving}
        may = self.rules.copies
        outs = [j for j in state.device if w.moves[j] and j not in state.host | busy] if may and not busy else []
        backs = [j for j in state.host if j not in state.device] if may and not state.landing else []
        for out in (None, *outs):
            for back in (None, *backs):
                under_way = len(state.leaving) + len(state.landing) + (out is not None) + (back is not None)
                if self.rules.duplex or under_way <= 1:
                    yield out, back

    def stage(
        self, t: int, state: State, leaving: dict[int, int], landing: dict[int, int]
    ) -> Iterator[tuple[float, set[int], set[int]]]:
        """Each choice of recomputations and of what stays, with its time, or its memory."""
        w = self.world
        may = [
            j
            for j in range(t)
            if w.again[j] and j not in state.device and self.rules.recompute and t >= self.rules.since
        ]
        for reruns in subsets(may):
            runs = [*sorted(reruns), t]
            if not all(w.deps[k] <= state.device | {x for x in runs if x < k} for k in runs):
                continue
            must = {j for j, end in leaving.items() if end > t}
            loose = {i for i in (state.device | set(runs)) - must if any(u > t or w.again[u] for u in w.users[i])}
            for some in subsets(sorted(loose)):
                keep = some | must
                if (t == w.n - 1 and keep) or any(end == t and j in keep for j, end in landing.items()):
                    continue
                cost = self.cost(t, set(state.device), runs, keep | set(leaving), landing)
                if cost < inf:
                    yield cost, set(runs), keep

    def cost(self, t: int, device: set[int], runs: list[int], stays: set[int], landing: dict[int, int]) -> float:
        w, time, most, began = self.world, 0, 0, set(device)
        for place, k in enumerate(runs):
            if self.rules.plain and k == t:
                device -= {i for i in began - stays if max(w.users[i], default=i) < t}
            device.add(k)
            used = w.held[t] + w.bytes(device) + w.bytes(landing)
            choice = w.by[k] if self.by is None else [w.by[k][self.by[k]]]
            fit = [x for x in choice if used + x.workspace <= self.limit]
            if not fit:
                return inf
            time += min(x.time for x in fit)
            most = max(most, used + min(x.workspace for x in fit))
            through = began if self.rules.plain and k < t else set()
            device &= {i for x in runs[place + 1 :] for i in w.deps[x]} | stays | through
        return most if self.memory else time

    def told(
        self, t: int, state: State, runs: set[int], keep: set[int], out: int | None, back: int | None
    ) -> tuple[tuple[tuple[bool, bool, bool, bool], ...], ...] | None:
        """The stories after stage t; None where one of them is none that a plan can say."""
        if not self.rules.plain:
            return state.story
        stories = []
        for j in range(self.world.n):
            story = (*state.story[j], (j in state.device, j in runs, out == j, back == j)) if j < t else ()
            uses, on_host = self.world.users[j], j in state.host
            if j < t and t in uses:
                began = on_host and not any(o for _, _, o, _ in story)
                if not gap_is_plain(story, began, lambda x, j=j: self.world.end(x, self.world.in_ns[j]), t):
                    return None
                story = ()
            elif j < t and t > max(uses, default=j):
                there = [s for s, *_ in story] + [j in keep]
                if any(o or p for _, _, o, p in story) or sorted(there, reverse=True) != there:
                    return None
            stories.append(story)
        return tuple(stories)


def gap_is_plain(story: tuple[tuple[bool, bool, bool, bool], ...], on_host: bool, end: object, b: int) -> bool:
    """Whether what happened in the stages up to the use in stage b is nothing, a recomputation or a swap."""
    there, ran, out, back = ([bool(row[i]) for row in story] for i in range(4))
    m = len(story)
    if all(there):
        return not any(out + back)
    for at in range(m):  # Recompute
        if there == [False] * (at + 1) + [True] * (m - at - 1) and ran[at] and not any(out + back):
            return True
    if sum(back) != 1 or sum(out) > 1 or (not on_host and not any(out)):
        return False
    first = b - m + 1
    x = back.index(True)
    arrives = end(first + x) - first  # type: ignore[operator]
    for release in range(x + 1):  # Swap
        if there == [True] * release + [False] * (arrives - release + 1) + [True] * (m - arrives - 1):
            return True
    return False


def subsets(some: Iterable[int]) -> Iterator[set[int]]:
    items = list(some)
    for count in range(len(items) + 1):
        yield from (set(x) for x in combinations(items, count))


def obeys(nodes: Nodes, schedule: Schedule, rules: Rules) -> None:
    """Assert that a schedule does only what it may."""
    world, n = World(nodes), len(nodes)
    runs = list(zip(schedule.stage.tolist(), schedule.node.tolist(), schedule.by.tolist()))
    again = [(t, j) for t, j, _ in runs if t > j]
    assert all(t >= rules.since and rules.recompute for t, _ in again)
    assert rules.copies or not schedule.out + schedule.back
    assert max(Counter(j for _, j in schedule.out).values(), default=0) <= 1
    if rules.by is not None:
        assert all(v == rules.by[j] for _, j, v in runs)
    if rules.plain:
        where = {(t, j) for t, j, _ in runs}
        for j in range(n):
            rows = [
                (bool(schedule.resident[t, j]), (t, j) in where, (t, j) in schedule.out, (t, j) in schedule.back)
                for t in range(n)
            ]
            uses = [j, *world.users[j]]
            for a, b in pairwise(uses):
                began = any(rows[x][2] for x in range(a + 1))
                assert gap_is_plain(tuple(rows[a + 1 : b + 1]), began, lambda x, j=j: world.end(x, world.in_ns[j]), b)
            tail = [row[0] for row in rows[uses[-1] + 1 :]]
            assert tail == sorted(tail, reverse=True)
