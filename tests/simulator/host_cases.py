"""Traces with hosts, made by hand or drawn, under one clock, and how the oracle judges their timelines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from gpumem import check
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COPY_OUT, Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.strategies import plans, traces


def log(line: Timeline) -> list[tuple[int, int, int, str]]:
    """When each op was issued, started and ended, and what it waited for."""
    assert line.issued is not None
    return [(int(issued), s.start, s.end, s.cause) for issued, s in zip(line.issued, line)]


def chain(*durations: int, **columns: Any) -> Trace:
    """Ops of these durations that share nothing, on one stream unless set otherwise."""
    none: list[list[int]] = [[] for _ in durations]
    return Trace(Buffers.make([1], [0], [len(durations)]), Ops.make(none, none, duration=durations, **columns))


def with_copy(blocking: bool) -> Trace:
    """Two kernels of 10 and 30 ns; a copy out of what the first made, 7 ns; another kernel of 5 ns."""
    ops = Ops.make(
        [[], [], [0], []],
        [[0], [], [1], []],
        duration=[10, 30, -1, 5],
        stream=[0, 0, 1, 0],
        streams=["compute", "d2h"],
        role=[0, 0, COPY_OUT, 0],
        blocking=[False, False, blocking, False],
    )
    return Trace(Buffers.make([8, 8], [0, 2], [3, 3], host=[False, True]), ops)


@dataclass(frozen=True)
class Case:
    """A trace under one clock, with a host."""

    trace: Trace
    machine: Machine
    placement: Placement | None
    capacity: int | None
    sync: bool | None

    def line(self, iterations: int = 200) -> Timeline:
        memory = {"capacity": self.capacity, "iterations": iterations, "sync": self.sync}
        return simulate(self.trace, self.machine, self.placement, **memory)

    def rules(self) -> dict[str, Any]:
        memory = {"placement": self.placement, "capacity": self.capacity, "duplex": self.machine.duplex}
        return memory | {"host_costs": self.machine.host_costs(self.trace), "sync": self.sync}

    def check(self) -> None:
        check.timeline(self.trace, self.line(), self.machine.durations(self.trace), **self.rules())

    def off(self) -> Case:
        """Nothing takes host time, nothing blocks."""
        return replace(
            self,
            trace=self.trace.with_blocking(False),
            machine=self.machine.with_(host_ns=0, copy_host_ns=0),
            sync=None,
        )


@st.composite
def cases(draw: st.DrawFn, hosts: int = 3, *, memory: bool = True) -> Case:
    """Blocking ops and copies, of several hosts, drawn or planned; arcs; any clock."""
    trace = draw(traces(max_ops=8, hosts=hosts))
    if draw(st.booleans()):
        trace = replace(draw(plans(trace)), blocking=draw(st.booleans())).apply(trace)
    machine = tiny_machine(duplex=draw(st.booleans()))
    machine = machine.with_(
        host_ns=draw(st.sampled_from([0, 1.4, 3, 10, 100])), copy_host_ns=draw(st.sampled_from([0, 5]))
    )
    which, sync = draw(st.integers(0, 2 if memory else 0)), draw(st.sampled_from([None, True, False]))
    placement = best_fit(trace, alignment=draw(st.sampled_from([1, 4]))) if which == 1 else None
    capacity = trace.peak_live_bytes + draw(st.sampled_from([0, 0, 1, 5, 1000])) if which == 2 else None
    return Case(trace, machine, placement, capacity, sync)
