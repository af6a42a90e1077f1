"""Small models with their compiled kernels on the fake driver: the bits of the run without a plan, in random orders."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from fake_cuda import control
from fake_cuda.backend_checks import held, made_inside, report
from gpumem import Machine, best_fit, pool
from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.execute import Emulator, prepare, run
from gpumem.execute.cuda import Cuda
from gpumem.execute.models import Model, cnn, mlp, residual, transformer
from gpumem.kernels import device, ptx as _compiled, reference
from gpumem.swap import PLANNERS
from gpumem.trace import Trace
from tests.nets import lowest

MODELS = {
    "mlp": partial(mlp, batch=5, features=7, hidden=(6,) * 4, classes=3, optimiser="adam"),
    "cnn": partial(cnn, batch=2, side=4, channels=(3, 5), classes=3, norm=True, drop=0.25),
    "cnn-winograd": partial(cnn, batch=2, side=4, channels=(3, 2), classes=3, conv="winograd"),
    "residual": partial(residual, batch=2, side=4, channels=(2, 3), classes=3),
    "transformer": partial(transformer, batch=2, length=5, width=6, heads=2, blocks=1, vocabulary=7, drop=0.25),
}
ITERATIONS = 5
WAYS: dict[str, dict[str, bool]] = {"streams": {}, "timed": {"timing": True}, "graph": {"graph": True}}


@cache
def built(name: str) -> tuple[Model, Trace]:
    """A model, and its trace at the lowest limit that is reached."""
    model: Model = MODELS[name]()
    return model, lowest(model)


def left(model: Model, trace: Trace, placer: Any = best_fit, **options: Any) -> dict[int, bytes]:
    """The persistent bytes after some iterations."""
    with Cuda(**options) as backend:
        launch, host = model.launch(device), best_fit(trace.host_side())
        program = prepare(trace, placer(trace), backend, launch, host=host)
        program.write(model.initial)
        program.run(ITERATIONS)
        return {i: value.tobytes() for i, value in program.read().items() if i in model.initial}


def check_models_at_their_lowest_limit_have_the_bits_of_the_run_without_a_plan() -> None:
    for name in MODELS:
        model, swapped = built(name)
        assert swapped.peak_live_bytes < model.trace.peak_live_bytes
        want = left(model, model.trace)
        assert want[model.names["loss"]] != bytes(4)
        for way, options in WAYS.items():
            for seed in range(2):
                control.seed(seed)
                assert left(model, swapped, **options) == want, (name, way, seed)
    assert control.report() == "" and not any(held().values())


def check_plans_of_every_planner_have_the_bits_of_the_run_without_one() -> None:
    """At a limit between the lowest and the peak, so that all of them get there or say that they do not."""
    missed = []
    for name in ("mlp", "residual"):
        model = built(name)[0]
        machine, want, peak = Machine.named("gtx1080ti"), left(model, model.trace), model.trace.peak_live_bytes
        for planner in PLANNERS.values():
            quick = planner.with_known({"effort": 0.001, "evaluations": 4, "threshold": 1})
            try:
                with work.within(5):
                    swapped = quick(model.trace, machine, peak * 9 // 10).apply(model.trace)
            except NotReached:
                missed.append((name, planner.name))
                continue
            assert swapped.peak_live_bytes < peak, (name, planner.name)
            control.seed(3)
            assert left(model, swapped) == want, (name, planner.name)
    assert len(missed) <= len(PLANNERS) // 2, missed
    assert control.report() == "" and not any(held().values())


def check_places_of_every_pool_planner_have_the_bits_of_the_run_without_a_plan() -> None:
    model, swapped = built("residual")
    want = left(model, model.trace)
    for name, placer in pool.PLANNERS.items():
        quick = partial(placer, **({"effort": 0.001} if name in ("search", "exact") else {}))
        control.seed(4)
        assert left(model, swapped, placer=quick) == want, name


def check_models_learn_what_they_learn_in_numpy() -> None:
    for name in MODELS:
        model, _ = built(name)
        state, got = model.state(), left(model, model.trace)
        run(model.trace, best_fit(model.trace), Emulator(), model.launch(reference), ITERATIONS, state=state)
        for what, i in model.names.items():
            found = np.frombuffer(got[i], state[i].dtype)[: state[i].size].reshape(state[i].shape)
            np.testing.assert_allclose(found, state[i], 1e-3, 1e-5, err_msg=f"{name}: {what}")


def check_a_missing_wait_changes_what_a_model_learns() -> None:
    model, swapped = built("mlp")
    want, wrong = left(model, model.trace), 0
    launch, host = model.launch(device), best_fit(swapped.host_side())
    with Cuda() as backend:
        program = prepare(swapped, best_fit(swapped), backend, launch, host=host)
        program.after[:] = [[] for _ in program.after]
        for seed in range(10):
            control.seed(seed)
            program.write(model.initial)
            program.run(ITERATIONS)
            wrong += any(value.tobytes() != want[i] for i, value in program.read().items() if i in want)
    assert wrong > 5, wrong


def check_nothing_is_made_inside_an_iteration() -> None:
    with made_inside() as inside:
        for name in MODELS:
            model, swapped = built(name)
            for options in WAYS.values():
                left(model, swapped, **options)
    assert len(inside) == len(MODELS) * (2 * ITERATIONS + 2) and not np.any(inside), np.max(inside, axis=0)


def check_kernels_are_loaded_when_they_are_bound() -> None:
    model, swapped = built("mlp")
    for kernel in (kernels := _compiled._kernels.copy()):
        del _compiled._kernels[kernel]
    with Cuda() as backend:
        told = [control.count("loads")]
        program = prepare(swapped, best_fit(swapped), backend, model.launch(device))
        told.append(control.count("loads"))
        program.run(3)
        told.append(control.count("loads"))
    assert told[0] < told[1] == told[2] and control.count("unknown_launches") == 0, told
    _compiled._kernels.update(kernels)


def main() -> None:
    """Run all checks; print what came of each."""
    report({name: check for name, check in globals().items() if name.startswith("check_")})
