"""A trace as a program that knows nothing of plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.execute import Emulator, GenericOp, carried, in_units, initial, run
from gpumem.execute.models import MODELS
from gpumem.io import bundled
from gpumem.kernels import reference
from gpumem.pool.smartpool.offline import best_fit
from gpumem.runtime.trace_player import OverArrays, play
from gpumem.simulator.machine import Machine
from gpumem.swap import PLANNERS
from gpumem.testing import Unmanaged, steps
from gpumem.trace import Buffers, Ops, Trace


@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_as_it_does_in_a_slab(name: str) -> None:
    model = MODELS[name](batch=8)
    placed, played, device = model.state(), model.state(), Unmanaged()
    run(model.trace, best_fit(model.trace), Emulator(), model.launch(reference), 3, state=placed)
    play(model.trace, model.launch(reference), device, 3, state=played)
    assert all((placed[i] == played[i]).all() for i in placed)
    assert device.peak == model.trace.peak_live_bytes and not device.blocks


@pytest.mark.jit
def test_an_op_that_is_bound_again_has_its_scratch_arrays() -> None:
    """They are memory of the device that no limit knows of, and are there until it is closed."""
    made: list[object] = []

    def scratch(dtype: object, shape: tuple[int, ...]) -> np.ndarray:
        made.append(shape)
        return np.zeros(shape, dtype)

    trace = MODELS["mlp"](batch=4).trace
    counts = []
    for iterations in (1, 4):
        made.clear()
        play(trace, GenericOp(trace, reference), Unmanaged(), iterations, state_arrays=OverArrays(scratch))
        counts.append(len(made))
    assert counts[0] == counts[1] > 0


@pytest.mark.jit
@given(steps(), st.sampled_from([None, reference]), st.integers(1, 3))
def test_a_trace_with_generic_ops(trace: Trace, library: object, iterations: int) -> None:
    """Arcs that wrap, statistics, random ops, buffers without bytes; what nobody wrote is nobody's business."""
    placed, played, device = initial(trace), initial(trace), Unmanaged()
    run(trace, best_fit(trace), Emulator(), GenericOp(trace, library), iterations, state=placed)
    play(trace, GenericOp(trace, library), device, iterations, state=played)
    assert all((placed[i] == played[i]).all() for i in carried(trace))
    assert device.peak == trace.peak_live_bytes and not device.blocks


def test_blocks_that_move_are_bound_anew() -> None:
    class Moving(Unmanaged):
        """Has its blocks elsewhere after each op, and poison where they were."""

        def exec(self, op, reads=(), writes=(), **options):  # type: ignore[no-untyped-def]
            super().exec(op, reads, writes, **options)
            for block, old in self.blocks.items():
                self.blocks[block] = old.copy()
                old[...] = 0xA5

    model = MODELS["cnn-norm"](batch=4)
    still, moved = model.state(), model.state()
    play(model.trace, model.launch(reference), Unmanaged(), 2, state=still)
    play(model.trace, model.launch(reference), Moving(), 2, state=moved)
    assert all((still[i] == moved[i]).all() for i in still)


class OnDevice:
    """An array as those of a device are: it says where it lies."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = {"data": (array.ctypes.data, False)}


def test_an_op_is_bound_once_for_the_same_addresses() -> None:
    bound = []

    def launch(op, views):  # type: ignore[no-untyped-def]
        bound.append([views.backend.arrays[of].array.ctypes.data for of in (0, 1)])
        return lambda stream: None

    class Device(Unmanaged):
        turn = 0

        def exec(self, op, reads=(), writes=(), *, call=None, **options):  # type: ignore[no-untyped-def]
            self.turn += 1
            at = [np.zeros(8, np.uint8), np.zeros(8, np.uint8)] if self.turn % 4 == 0 else self.first
            call(None, *map(OnDevice, at))

        first = np.zeros(8, np.uint8), np.zeros(8, np.uint8)

    trace = Trace(Buffers.make([8, 8], [0, 0], [1, 1]), Ops.make([[0]], [[1]]))
    play(trace, launch, Device(), 8)
    assert len(bound) == 3 and bound[0] not in bound[1:]


def test_mallocs_and_frees_stand_where_the_lifetimes_say() -> None:
    calls = []

    class Device(Unmanaged):
        def malloc(self, size, **options):  # type: ignore[no-untyped-def]
            calls.append(f"malloc {size}")
            return super().malloc(size, **options)

        def free(self, block):  # type: ignore[no-untyped-def]
            calls.append(f"free {len(self.blocks[block])}")
            super().free(block)

        def exec(self, op, *arguments, **options):  # type: ignore[no-untyped-def]
            calls.append(op)

    table = Buffers.make([1, 2, 3, 4], [0, 1, 1, 0], [2, 2, 3, 2], persistent=[True, False, False, False])
    play(Trace(table, Ops.make([[], []], [[], []], name=["a", "b"])), None, Device(), 2)
    once = "malloc 4, a, free 3, malloc 2, malloc 3, b, free 2, free 4"
    assert ", ".join(calls) == f"malloc 1, malloc 3, {once}, {once}, free 1, free 3"


def test_costs_go_to_the_device() -> None:
    told = []

    class Device(Unmanaged):
        def exec(self, op, *arguments, duration, flops, moved, **options):  # type: ignore[no-untyped-def]
            told.append((op, duration, flops, moved))

    trace = bundled("mlp3")
    play(trace, None, Device())
    ops = trace.ops
    assert told == list(zip(ops.name, ops.duration.tolist(), ops.flops.tolist(), ops.moved.tolist()))


def test_what_cannot_be_played() -> None:
    trace, device = bundled("mlp3"), Unmanaged()
    with pytest.raises(ValueError, match="iterations: 0 is below 1"):
        play(trace, None, device, 0)
    swapped = PLANNERS["on-demand"](trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 9 // 10).apply(trace)
    with pytest.raises(ValueError, match="a plan is in it"):
        play(swapped, None, device)
    with pytest.raises(ValueError, match="a bare instance cannot run"):
        play(trace.host_side(), None, device)
    inner = int(np.flatnonzero(~trace.crossing)[0])
    with pytest.raises(ValueError, match=f"recorded buffer {inner} carries no value over the boundary"):
        play(trace, None, device, state={inner: np.zeros(1)})
    with pytest.raises(ValueError, match="unit: 0 is below 1"):
        in_units(trace, 0)


def test_a_view_larger_than_its_block() -> None:
    trace = Trace(Buffers.make([8], [0], [1]), Ops.make([[]], [[0]]))
    with pytest.raises(ValueError, match=r"takes 16 bytes"):
        play(trace, lambda op, views: views(0, "int64", (2,)), Unmanaged())


def test_no_workspace_is_an_array_without_bytes() -> None:
    assert OverArrays().counter(0).tolist() == [0]
    trace, seen = Trace(Buffers.make([8], [0], [1]), Ops.make([[]], [[0]])), []
    play(trace, lambda op, views: seen.append(views.workspace("float32").shape), Unmanaged())
    assert seen == [(0,)]
