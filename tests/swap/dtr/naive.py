"""DTR's runtime, read from the paper and written with sets, slowly: for steps in which one op makes each storage.

Where the paper leaves it open it does as the authors' simulator does: an op's operands count as used when it is asked
for, of equal scores the one that came to the pool last is evicted, of several scores of 0 the one that came first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpumem.trace import Trace


class Stopped(Exception):
    """There is no room, or it takes too long."""


@dataclass(eq=False)
class Family:
    """Storages that were evicted next to each other, and what those of them take that are gone still."""

    worth: int
    members: set[int] = field(default_factory=set)
    exact: bool = True  # nobody came back yet


class Naive:
    """One iteration; `run` says how it ended, what reruns took, and how many reruns and evictions there were."""

    def __init__(self, trace: Trace, budget: int, heuristic: str, free: str, most: float = math.inf) -> None:
        self.trace, self.budget, self.heuristic, self.free, self.most = trace, budget, heuristic, free, most
        self.reads, self.writes = trace.ops.reads.tolist(), trace.ops.writes.tolist()
        self.size, self.time = trace.buffers.size.tolist(), trace.ops.duration.tolist()
        self.maker = {b: op for op, row in enumerate(self.writes) for b in row}
        self.here = set(range(len(self.size))) - set(self.maker)  # what lives for ever
        self.gone: set[int] = set()  # evicted
        self.dead: set[int] = set()
        self.banished: set[int] = set()
        self.bound: set[int] = set()
        self.pool: list[int] = []
        self.locks = dict.fromkeys(self.maker, 0)
        self.used = dict.fromkeys(self.maker, 0)
        self.family: dict[int, Family] = {}
        self.clock, self.again, self.reruns, self.evictions, self.peak = 1, 0, 0, 0, 0

    def run(self) -> tuple[str, int, int, int, int]:
        how = "ran"
        try:
            for op in range(self.trace.n):
                self.family |= {b: Family(0, {b}, exact=False) for b in self.writes[op]}  # as simrd has it
                self.make(op, None)
                for b in self.writes[op]:
                    self.used[b] = self.clock
                for b in range(len(self.size)):
                    if b in self.maker and self.trace.buffers.end[b] == op + 1:
                        self.release(b)
        except Stopped as stop:
            how = str(stop)
        return how, self.again, self.reruns, self.evictions, self.peak

    def cost(self, b: int) -> int:
        return int(self.time[self.maker[b]])

    def sources(self, b: int) -> set[int]:
        return {p for p in self.reads[self.maker[b]] if p in self.maker} - self.banished

    def users(self, b: int) -> set[int]:
        return {u for u in self.maker if b in self.reads[self.maker[u]]} - self.banished

    def make(self, op: int, wanted: int | None) -> None:
        """Run an op, for the first time or for a storage."""
        operands = [p for p in self.reads[op] if p in self.maker]
        for p in operands:
            self.used[p] = self.clock
        lacking = [p for p in operands if p not in self.here]
        for p in operands:
            if p not in lacking:
                self.lock(p)
        for p in lacking:
            if p not in self.here:
                self.make(self.maker[p], p)
            self.lock(p)
        self.make_room(sum(self.size[b] for b in self.writes[op]))
        self.clock += self.time[op]
        if wanted is not None:
            self.again += self.time[op]
            self.reruns += 1
        for b in sorted(self.writes[op], key=lambda b: b != wanted):
            if b not in self.here | self.banished:
                self.arrive(b)
        for p in operands:
            self.locks[p] -= 1
            if not self.locks[p]:
                self.pool.append(p)
        for p in operands:
            if self.free == "banish" and p in self.dead:
                self.banish(p)
        if self.again > self.most:
            raise Stopped("too long")

    def make_room(self, new: int) -> None:
        while self.held() + new > self.budget:
            if not self.pool:
                raise Stopped("no room")
            self.evictions += 1
            self.evict(self.victim())
        self.peak = max(self.peak, self.held() + new)

    def held(self) -> int:
        return sum(self.size[b] for b in self.here)

    def victim(self) -> int:
        scores = [self.score(b) for b in self.pool]
        if 0 in scores:
            return self.pool[scores.index(0)]
        return [b for b, score in zip(self.pool, scores) if score == min(scores)][-1]

    def lock(self, b: int) -> None:
        if b in self.pool:
            self.pool.remove(b)
        self.locks[b] += 1

    def arrive(self, b: int) -> None:
        self.here.add(b)
        self.gone.discard(b)
        self.pool.append(b)
        family = self.family.pop(b)
        family.worth -= self.cost(b)
        family.exact = False

    def evict(self, b: int) -> None:
        self.here.remove(b)
        self.pool.remove(b)
        joined = Family(self.cost(b), {b})
        for other in {self.family[x] for x in self.sources(b) | self.users(b) if x in self.family}:
            joined.worth += other.worth
            joined.members |= other.members
            joined.exact &= other.exact
        self.gone.add(b)
        self.family |= {x: joined for x in joined.members if x == b or x in self.family}
        if joined.exact:  # then it is the neighbourhood, all ways
            assert joined.worth == sum(map(self.cost, self.reach({b}, both=True) | {b}))

    def release(self, b: int) -> None:
        self.dead.add(b)
        if self.free == "evict" and b in self.here:
            self.evict(b)
        elif self.free == "banish":
            self.banish(b)

    def banish(self, b: int) -> None:
        if self.users(b) & self.gone:
            return
        for user in self.users(b) & self.here - self.bound:
            self.bound.add(user)
            self.lock(user)
        if b in self.here:
            self.here.remove(b)
            self.pool = [x for x in self.pool if x != b]
        self.gone.discard(b)
        if b in self.family:
            self.family.pop(b).worth -= self.cost(b)
        self.banished.add(b)

    def reach(self, from_: set[int], *, up: bool = False, both: bool = False) -> set[int]:
        """The evicted storages that are reached through evicted ones: upwards, downwards, or any way."""
        found: set[int] = set()
        todo = list(from_)
        while todo:
            b = todo.pop()
            beside = self.sources(b) | self.users(b) if both else self.sources(b) if up else self.users(b)
            new = (beside & self.gone) - found
            found |= new
            todo += new
        return found

    def score(self, b: int) -> float:
        """What the paper prints in section 4.1 and appendix C."""
        size, stale = self.size[b], self.clock - self.used[b]
        up, down = self.reach({b}, up=True), self.reach({b})
        near = {self.family[x] for x in self.sources(b) | self.users(b) if x in self.family}
        time, under = {
            "dtr": (self.cost(b) + sum(map(self.cost, up)) + sum(map(self.cost, down)), size * stale),
            "eq": (self.cost(b) + sum(family.worth for family in near), size * stale),
            "local": (self.cost(b), size * stale),
            "lru": (1, stale),
            "size": (1, size),
            "msps": (self.cost(b) + sum(map(self.cost, up)), size),
        }[self.heuristic]
        return time / under if under else math.inf
