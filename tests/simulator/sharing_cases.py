"""Traces whose streams share the GPU, made by hand or drawn, and the model in steps of a nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator._sharing_loop import SharedClock, Streams
from gpumem.simulator.hazards import hazards
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import rates, share
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COMPUTE, RECOMPUTE, SYNC, Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.strategies import traces

SLOWDOWNS = (0.3, 0.5, 1.0, 2.25)


def streams(*work: list[int]) -> Trace:
    """Streams that share nothing."""
    ops = [(s, ns) for s, row in enumerate(work) for ns in row]
    nothing: list[list[int]] = [[] for _ in ops]
    names = [f"compute{s}" for s in range(len(work))]
    row = Ops.make(nothing, nothing, duration=[ns for _, ns in ops], stream=[s for s, _ in ops], streams=names)
    return Trace(Buffers.make([1], [0], [len(ops)]), row)


@dataclass(frozen=True)
class Case:
    """What is shared, and how."""

    trace: Trace
    machine: Machine
    slowdown: float
    placement: Placement | None = None
    sync: bool | None = None

    def clock(self) -> SharedClock:
        trace, machine = self.trace, self.machine
        hosts = Hosts.make(trace, machine, self.sync)
        _, rate = rates(self.slowdown, len(trace.ops.streams))
        return SharedClock(Streams.make(trace, machine, rate, self.placement, hosts), hosts)

    def shared(self) -> tuple[Trace, Timeline]:
        shared = share(self.trace, self.machine, self.slowdown, self.placement, sync=self.sync)
        return shared, simulate(shared, self.machine, self.placement, sync=self.sync)

    def check(self, iterations: int = 5) -> None:
        clock, naive = self.clock(), Naive(self, iterations)
        for k in range(iterations):
            start, end = clock.advance()
            want = naive.iteration(k)
            assert (start.tolist(), end.tolist()) == want, f"iteration {k}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    trace = draw(traces(max_ops=8, streams=3, hosts=draw(st.sampled_from([0, 2]))))
    role = trace.ops.role.copy()
    for i in draw(st.lists(st.integers(0, trace.n - 1), max_size=3)):
        role[i] = draw(st.sampled_from([SYNC, RECOMPUTE])) if role[i] == COMPUTE else role[i]
    duration = np.where(role == SYNC, -1, trace.ops.duration)
    trace = replace(trace, ops=replace(trace.ops, role=role, duration=duration))
    machine = tiny_machine(duplex=draw(st.booleans()))
    if draw(st.booleans()):
        machine = machine.with_(host_ns=draw(st.sampled_from([2, 9])), copy_host_ns=draw(st.sampled_from([0, 3])))
    placement = best_fit(trace, alignment=1) if draw(st.booleans()) else None
    sync = draw(st.sampled_from([None, None, False, True]))
    return Case(trace, machine, draw(st.sampled_from(SLOWDOWNS)), placement, sync)


class Naive:
    """The model in steps of a nanosecond: who can end ends, who can begin begins, then all that run progress."""

    def __init__(self, case: Case, iterations: int) -> None:
        trace, machine = case.trace, case.machine
        self.n, self.ops, self.s = trace.n, trace.ops, Fraction(str(case.slowdown))
        self.work, self.cost = machine.durations(trace).tolist(), machine.host_costs(trace).tolist()
        self.after = hazards(trace, case.placement).after.tolist()
        self.kernel = [r in (COMPUTE, RECOMPUTE) for r in trace.ops.role.tolist()]
        copies = trace.ops.copies.tolist()
        one = not machine.duplex
        self.engine = ["link" if c and one else s for c, s in zip(copies, trace.ops.stream.tolist())]
        self.ahead = 2 * len(set(self.engine))
        self.blocks, self.drains = trace.ops.blocking.tolist(), (trace.ops.blocking & trace.ops.copies).tolist()
        self.on = bool(any(self.cost) or any(self.blocks) or case.sync)
        if self.on and case.sync is not False and not all(copies):
            self.blocks[max(i for i in range(self.n) if not copies[i])] = True
        self.now, self.stop = 0, (iterations + self.ahead) * self.n
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.issued: dict[int, int] = {}
        self.left: dict[int, Fraction] = {}
        self.next = {e: self.engine.index(e) for e in set(self.engine)}

    def iteration(self, k: int) -> tuple[list[int], list[int]]:
        mine = range(k * self.n, (k + 1) * self.n)
        while not all(p in self.end for p in mine):
            self.step()
        return [self.start[p] for p in mine], [self.end[p] for p in mine]

    def step(self) -> None:
        changed = True
        while changed:
            changed = False
            for p in [p for p, left in self.left.items() if left <= 0]:
                self.end[p] = self.now
                del self.left[p]
                changed = True
            for e, p in self.next.items():
                if not any(self.engine[q % self.n] == e for q in self.left) and p < self.stop and self.may(p):
                    self.start[p], self.left[p] = self.now, Fraction(self.work[p % self.n])
                    self.next[e] = next(q for q in range(p + 1, p + self.n + 1) if self.engine[q % self.n] == e)
                    changed = True
        count = sum(self.kernel[p % self.n] for p in self.left)
        for p in self.left:
            self.left[p] -= 1 / (1 + self.s * (count - 1)) if self.kernel[p % self.n] else 1
        self.now += 1

    def may(self, p: int) -> bool:
        base = p - p % self.n
        behind = base - self.ahead * self.n
        waits = [base + y for y in self.after[p % self.n]]
        if any(y >= 0 and y not in self.end for y in [*waits, *range(behind, behind + self.n)]):
            return False
        return not self.on or self.handed(p) <= self.now

    def handed(self, p: int) -> float:
        """When an op is launched, infinity where that is not known yet."""
        for q in range(len(self.issued), p + 1):
            host = self.ops.host[q % self.n]
            before = [r for r in range(q) if self.ops.host[r % self.n] == host]
            r = before[-1] if before else -1
            known = [0] if r < 0 else [self.end.get(r, -1) if self.blocks[r % self.n] else self.issued[r]]
            if self.drains[q % self.n]:
                known += [self.end.get(r, -1) for r in before]
            if min(known) < 0:
                return float("inf")
            self.issued[q] = max(max(known) + self.cost[q % self.n], self.issued.get(q - 1, 0))
        return self.issued[p]
