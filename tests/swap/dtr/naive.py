"""DTR's runtime, read from the paper and written with sets, slowly: for steps in which one op makes each storage.

Where the paper leaves it open it does as the authors' simulator does: an op's operands count as used when it is asked
for, of equal scores the one that came to the pool last is evicted, of several scores of 0 the one that came first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpumem.trace import Trace


class Stopped(Exception):
    """Nothing is left to evict, or it takes too long."""


@dataclass(eq=False)
class Family:
    """Storages that were evicted next to each other, and the ns of those that are still evicted."""

    worth: int
    members: set[int] = field(default_factory=set)
    exact: bool = True  # none returned yet


class Naive:
    """One iteration; `run` returns how it ended, ns of recomputations, their number, and that of evictions."""

    def __init__(self, trace: Trace, budget: int, heuristic: str, free: str, most: float = math.inf) -> None:
        self.trace, self.budget, self.heuristic, self.free, self.most = trace, budget, heuristic, free, most
        self.reads, self.writes = trace.ops.reads.tolist(), trace.ops.writes.tolist()
        self.size, self.time = trace.buffers.size.tolist(), trace.ops.duration.tolist()
        self.maker = {storage: op for op, row in enumerate(self.writes) for storage in row}
        self.on_device = set(range(len(self.size))) - set(self.maker)  # what lives for ever
        self.evicted: set[int] = set()  # evicted
        self.dead: set[int] = set()
        self.banished: set[int] = set()
        self.bound: set[int] = set()
        self.pool: list[int] = []
        self.locks = dict.fromkeys(self.maker, 0)
        self.used = dict.fromkeys(self.maker, 0)
        self.family: dict[int, Family] = {}
        self.clock, self.recompute_ns, self.recomputations, self.evictions, self.peak = 1, 0, 0, 0, 0

    def run(self) -> tuple[str, int, int, int, int]:
        how = "ran"
        try:
            for op in range(self.trace.n):
                self.family |= {
                    storage: Family(0, {storage}, exact=False) for storage in self.writes[op]
                }  # as simrd has it
                self.make(op, None)
                for storage in self.writes[op]:
                    self.used[storage] = self.clock
                for storage in range(len(self.size)):
                    if storage in self.maker and self.trace.buffers.end[storage] == op + 1:
                        self.release(storage)
        except Stopped as stop:
            how = str(stop)
        return how, self.recompute_ns, self.recomputations, self.evictions, self.peak

    def cost(self, storage: int) -> int:
        return int(self.time[self.maker[storage]])

    def sources(self, storage: int) -> set[int]:
        return {source for source in self.reads[self.maker[storage]] if source in self.maker} - self.banished

    def users(self, storage: int) -> set[int]:
        return {user for user in self.maker if storage in self.reads[self.maker[user]]} - self.banished

    def make(self, op: int, wanted: int | None) -> None:
        """Run an op, for the first time or for a storage."""
        operands = [source for source in self.reads[op] if source in self.maker]
        for source in operands:
            self.used[source] = self.clock
        lacking = [source for source in operands if source not in self.on_device]
        for source in operands:
            if source not in lacking:
                self.lock(source)
        for source in lacking:
            if source not in self.on_device:
                self.make(self.maker[source], source)
            self.lock(source)
        self.evict_for(sum(self.size[output] for output in self.writes[op]))
        self.clock += self.time[op]
        if wanted is not None:
            self.recompute_ns += self.time[op]
            self.recomputations += 1
        for output in sorted(self.writes[op], key=lambda output: output != wanted):
            if output not in self.on_device | self.banished:
                self.arrive(output)
        for source in operands:
            self.locks[source] -= 1
            if not self.locks[source]:
                self.pool.append(source)
        for source in operands:
            if self.free == "banish" and source in self.dead:
                self.banish(source)
        if self.recompute_ns > self.most:
            raise Stopped("too long")

    def evict_for(self, new: int) -> None:
        while self.held() + new > self.budget:
            if not self.pool:
                raise Stopped("no room")
            self.evictions += 1
            self.evict(self.victim())
        self.peak = max(self.peak, self.held() + new)

    def held(self) -> int:
        return sum(self.size[storage] for storage in self.on_device)

    def victim(self) -> int:
        scores = [self.score(storage) for storage in self.pool]
        if 0 in scores:
            return self.pool[scores.index(0)]
        return [storage for storage, score in zip(self.pool, scores) if score == min(scores)][-1]

    def lock(self, storage: int) -> None:
        if storage in self.pool:
            self.pool.remove(storage)
        self.locks[storage] += 1

    def arrive(self, storage: int) -> None:
        self.on_device.add(storage)
        self.evicted.discard(storage)
        self.pool.append(storage)
        family = self.family.pop(storage)
        family.worth -= self.cost(storage)
        family.exact = False

    def evict(self, storage: int) -> None:
        self.on_device.remove(storage)
        self.pool.remove(storage)
        joined = Family(self.cost(storage), {storage})
        for other in {self.family[near] for near in self.sources(storage) | self.users(storage) if near in self.family}:
            joined.worth += other.worth
            joined.members |= other.members
            joined.exact &= other.exact
        self.evicted.add(storage)
        self.family |= {near: joined for near in joined.members if near == storage or near in self.family}
        if joined.exact:  # then it is the neighbourhood, all ways
            assert joined.worth == sum(map(self.cost, self.reach({storage}, both=True) | {storage}))

    def release(self, storage: int) -> None:
        self.dead.add(storage)
        if self.free == "evict" and storage in self.on_device:
            self.evict(storage)
        elif self.free == "banish":
            self.banish(storage)

    def banish(self, storage: int) -> None:
        if self.users(storage) & self.evicted:
            return
        for user in self.users(storage) & self.on_device - self.bound:
            self.bound.add(user)
            self.lock(user)
        if storage in self.on_device:
            self.on_device.remove(storage)
            self.pool = [other for other in self.pool if other != storage]
        self.evicted.discard(storage)
        if storage in self.family:
            self.family.pop(storage).worth -= self.cost(storage)
        self.banished.add(storage)

    def reach(self, from_: set[int], *, up: bool = False, both: bool = False) -> set[int]:
        """The evicted storages that are reached through evicted ones: upwards, downwards, or any way."""
        found: set[int] = set()
        todo = list(from_)
        while todo:
            storage = todo.pop()
            beside = (
                self.sources(storage) | self.users(storage)
                if both
                else self.sources(storage)
                if up
                else self.users(storage)
            )
            new = (beside & self.evicted) - found
            found |= new
            todo += new
        return found

    def score(self, storage: int) -> float:
        """What the paper prints in section 4.1 and appendix C."""
        size, stale = self.size[storage], self.clock - self.used[storage]
        up, down = self.reach({storage}, up=True), self.reach({storage})
        near = {
            self.family[near_one] for near_one in self.sources(storage) | self.users(storage) if near_one in self.family
        }
        time, under = {
            "dtr": (self.cost(storage) + sum(map(self.cost, up)) + sum(map(self.cost, down)), size * stale),
            "eq": (self.cost(storage) + sum(family.worth for family in near), size * stale),
            "local": (self.cost(storage), size * stale),
            "lru": (1, stale),
            "size": (1, size),
            "msps": (self.cost(storage) + sum(map(self.cost, up)), size),
        }[self.heuristic]
        return time / under if under else math.inf
