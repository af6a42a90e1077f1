"""What a step takes as it is: what its allocator reserves, workspaces, and the context."""

from __future__ import annotations

import pytest

import gpumem
from gpumem import Machine, Trace
from gpumem.pipeline import peak_by_kind, requirement
from gpumem.pipeline.requirement import CONTEXT, context_of
from gpumem.pool import Caching, replay
from gpumem.simulator import workspaces
from tests.nets import MIB

pytestmark = pytest.mark.jit


def reserved(trace: Trace) -> int:
    allocator = Caching()
    replay(trace, allocator)
    return allocator.statistics.reserved.peak


def test_a_step_takes_what_its_allocator_reserves_with_its_workspaces() -> None:
    trace = gpumem.bundled("vgg16")
    found = requirement(trace)
    assert (found.live, found.tensors) == (trace.peak_live_bytes, reserved(trace))
    assert found.reserved == reserved(workspaces.add(trace)) == found.tensors + found.workspaces
    assert requirement(trace, trace).workspaces == 0
    assert found.kinds == peak_by_kind(trace) and sum(size for _, size in found.kinds) == trace.peak_live_bytes


def test_a_buffer_that_wraps_and_moves_is_reserved_for() -> None:
    trace = Trace.from_lifetimes([2 * MIB, 3 * MIB], [1, 3], [4, 6], n=4)
    assert requirement(trace).reserved >= 5 * MIB


def test_the_context_is_what_the_machine_says_or_assumed() -> None:
    machine = Machine.named("rtx4090")
    assert context_of(machine) == CONTEXT
    assert context_of(machine.with_(reserved=5)) == 5
    assert context_of(machine.with_(capacity=400)) == 100
