"""Models learn, their gradients are right, and planned training is bit for bit the unmanaged one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpumem import check
from gpumem.execute import Call, Views
from gpumem.execute.models import MODELS, Model, cnn, mlp, residual, transformer
from gpumem.kernels import reference
from gpumem.trace import Op
from gpumem.trace.kinds import STATISTICS
from tests.execute.models.training import SMALL, train
from tests.nets import half_again, lowest


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls(name: str) -> None:
    model = MODELS[name](batch=8)
    first, last = (float(train(model, n)["loss"][0]) for n in (1, 40))
    assert last < first / 2


@pytest.mark.parametrize("name", SMALL)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    build = SMALL[name]
    step = 2.0**-12  # small, as rectifiers and maxima have kinks

    def after_one(push: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        model = build()
        for key, value in (push or {}).items():
            model.initial[model.names[key]] = value
        return train(model, 1)

    model = build()
    start = {key: model.initial[i] for key, i in model.names.items()}
    once = after_one()
    velocity = {key: once[f"{key}.velocity"] for key in model.parameters(model.initial)}
    rng = np.random.default_rng(0)
    for key, gradient in velocity.items():  # from zero, the first velocity is the gradient
        direction = rng.standard_normal(gradient.shape).astype(np.float32)
        losses = [float(after_one({key: start[key] + s * step * direction})["loss"][0]) for s in (1, -1)]
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=0.02, abs=0.01), key


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "orders, steps",
    [(1, 3), pytest.param(4, 10, marks=pytest.mark.thorough), pytest.param(200, 20, marks=pytest.mark.slow)],
)
def test_training_at_the_lowest_limit_is_bit_identical(name: str, orders: int, steps: int) -> None:
    model = MODELS[name]()
    swapped = lowest(model)
    assert swapped.peak_live_bytes < 0.9 * model.trace.peak_live_bytes
    want = train(model, steps)
    for order in range(orders):
        got = train(model, steps, order, swapped)
        assert all(np.array_equal(want[key], got[key]) for key in want), f"order {order}"


def test_a_kind_of_convolution_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="kind: 'fft' is unknown; there are direct, im2col, winograd"):
        cnn(conv="fft")


def test_batch_norm_keeps_statistics_and_dropout_draws() -> None:
    model = SMALL["cnn-norm"]()
    trace = model.trace
    assert {op.name for op, rng in zip(trace.ops, trace.ops.rng) if rng} == {"dropout"}
    kept = {name for name, i in model.names.items() if trace.buffers.kind[i] == STATISTICS}
    assert kept == {f"norm{i}.{what}" for i in ("1a", "1b", "2a", "2b") for what in ("running_mean", "running_var")}
    once, twice = (train(model, n) for n in (1, 2))
    for name in kept:
        assert not np.array_equal(model.initial[model.names[name]], once[name])
        assert not np.array_equal(once[name], twice[name])


@pytest.mark.parametrize(
    "build, again",
    [
        (lambda: MODELS["cnn-norm"](batch=4), {"batch_norm", "relu", "dropout"}),
        (lambda: residual(batch=4), {"batch_norm", "relu", "add"}),
        (lambda: transformer(batch=4, drop=0.25), {"embedding", "layer_norm", "gelu", "attention", "dropout", "add"}),
    ],
    ids=["cnn-norm", "residual", "transformer"],
)
def test_training_with_half_the_activations_made_again_is_bit_identical(
    build: Callable[[], Model], again: set[str]
) -> None:
    model = build()
    less = half_again(model)
    check.data_flow(model.trace, less)
    assert less.peak_live_bytes < model.trace.peak_live_bytes
    assert again <= {op.name for op in less.ops if op.role == "recompute"}
    want = train(model, 20)
    got = train(model, 20, 1, less)
    assert all(np.array_equal(want[key], got[key]) for key in want)
    assert want["loss"] < train(model, 1)["loss"]


def test_a_rerun_that_draws_anew_gives_other_bits() -> None:
    model = MODELS["cnn-norm"](batch=4)
    bind = model.launch(reference)

    def anew(op: Op, views: Views) -> Call | None:
        return bind(replace(op, role="compute") if op.name == "dropout" else op, views)

    want, got = train(model, 2), train(model, 2, trace=half_again(model), launch=anew)
    assert not np.array_equal(want["loss"], got["loss"])


def test_a_rerun_that_updates_statistics_gives_other_bits() -> None:
    model = MODELS["cnn-norm"](batch=4)
    bind = model.launch(reference)
    kept: dict[int, list[np.ndarray]] = {}

    def again(op: Op, views: Views) -> Call | None:
        call = bind(op, views)
        if op.role != "recompute":
            kept[op.of] = [views(i, np.float32, (1,)) for i in model.trace.statistics[op.of].tolist()]
            return call

        def update(stream: object) -> None:
            assert call is not None
            call(stream)
            for array in kept[op.of]:
                array *= np.float32(0.9)

        return update

    want, got = train(model, 2), train(model, 2, trace=half_again(model), launch=again)
    differ = {name for name in want if not np.array_equal(want[name], got[name])}
    assert differ and all(name.split(".")[-1].startswith("running_") for name in differ)


# Ways that part and meet


def test_a_model_is_deterministic() -> None:
    builds: list[Callable[[], Model]] = [mlp, cnn, MODELS["cnn-norm"], residual, transformer]
    for build in builds:
        a, b = train(build(), 3, 1), train(build(), 3, 2)
        assert all(np.array_equal(a[key], b[key]) for key in a)
