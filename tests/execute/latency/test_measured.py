"""Durations of ops are the medians of what a backend says that they took."""

from __future__ import annotations

import pytest

from gpumem.execute import Emulator, Simulator
from gpumem.execute.latency import measured
from gpumem.kernels import reference
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from tests.execute.models.training import SMALL

MACHINE = Machine.named("gtx1080ti")


def test_measured_durations_are_medians_of_what_the_backend_says() -> None:
    model = SMALL["mlp"]()
    trace = measured(model.trace, Emulator(), model.launch(reference), place=best_fit, state=model.initial)
    assert (trace.ops.duration > 0).all()
    again = measured(trace, Simulator(MACHINE), None, place=best_fit)
    assert again.ops.duration.tolist() == trace.ops.duration.tolist()


def test_what_a_backend_does_not_time_is_refused() -> None:
    class Blind(Emulator):
        def wait(self, token):  # type: ignore[no-untyped-def]
            span = super().wait(token)
            return type(span)(span.op, -1, -1)

    model = SMALL["mlp"]()
    with pytest.raises(ValueError, match="op 0: Blind did not measure it"):
        measured(model.trace, Blind(), model.launch(reference), place=best_fit, state=model.initial)
