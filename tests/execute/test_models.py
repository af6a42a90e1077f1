"""Models learn, their gradients are right, and planned training is bit for bit the unmanaged one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpumem import Variant, check
from gpumem.base.errors import ExecutionError
from gpumem.execute import Call, Emulator, Launch, Simulator, Views, prepare, run
from gpumem.execute.latency import measured
from gpumem.execute.models import MODELS, Graph, Model, Tensor, blobs, cnn, mlp, residual, transformer
from gpumem.execute.models.layers import average_pool, conv2d, dense, max_pool, relu, sgd, skip, softmax_loss
from gpumem.execute.models.transformer import self_attention
from gpumem.kernels import reference
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.trace import Op, Trace
from gpumem.trace.kinds import STATISTICS
from tests.nets import half_again, lowest

MACHINE = Machine.named("gtx1080ti")
SMALL = {
    "mlp": lambda: mlp(batch=6, features=5, hidden=(7, 4), classes=3),
    "cnn": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3),
    "cnn-im2col": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3, conv="im2col"),
    "cnn-winograd": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3, conv="winograd"),
    "cnn-norm": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3, norm=True, drop=0.25),
    "residual": lambda: residual(batch=4, side=8, channels=(2, 3), classes=3),
    "transformer": lambda: transformer(2, length=5, width=6, heads=2, blocks=2, vocabulary=5, period=2, drop=0.25),
}


def train(
    model: Model, iterations: int, order: int = 0, trace: Trace | None = None, launch: Launch | None = None
) -> dict[str, np.ndarray]:
    """Every persistent tensor afterwards, by name."""
    trace, state = trace or model.trace, model.state()
    options = {"host": best_fit(trace.host_side()), "state": state}
    run(trace, best_fit(trace), Emulator(order), launch or model.launch(reference), iterations, **options)
    return {name: state[i] for name, i in model.names.items()}


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
    assert swapped.peak_load < 0.9 * model.trace.peak_load
    want = train(model, steps)
    for order in range(orders):
        got = train(model, steps, order, swapped)
        assert all(np.array_equal(want[key], got[key]) for key in want), f"order {order}"


def test_a_variant_runs_the_other_kernel_with_its_workspace() -> None:
    model = SMALL["cnn"]()
    op = next(o.id for o in model.trace.ops if o.name == "conv2d")
    size = model.workspaces(op)
    assert list(size) == ["conv2d", "conv2d_im2col", "conv2d_winograd"] and size["conv2d"] == 0
    want = train(model, 3)
    for name in ("conv2d_im2col", "conv2d_winograd"):
        plan = Plan((Variant(op, name, 5, size[name]),), model.trace.n)
        other = train(model, 3, trace=plan.apply(model.trace))
        assert all(np.allclose(want[key], other[key], atol=1e-4) for key in want)


def test_winograd_is_for_small_windows_that_move_by_one_and_not_for_weights() -> None:
    graph = Graph()
    x = graph.constant("x", np.ones((2, 3, 8, 8), np.float32))
    y = conv2d(graph, "first", x, 4, kind="winograd")
    y = conv2d(graph, "second", y, 4, size=1, kind="winograd")
    y = conv2d(graph, "third", y, 4, stride=2, kind="winograd")
    graph.backward(y)
    model = graph.model("three")
    names = [op.name for op in model.trace.ops if op.name.startswith("conv2d")]
    back = ["conv2d_weight_gradient", "conv2d_input_gradient"]
    assert names == ["conv2d_winograd", "conv2d", "conv2d", *back, *back, "conv2d_weight_gradient"]
    assert [name for op in range(model.trace.n) for name in model.workspaces(op) if "wino" in name] == [
        "conv2d_winograd"
    ]


def test_the_workspace_is_in_the_trace() -> None:
    direct, much = (cnn(batch=4, conv=kind).trace for kind in ("direct", "im2col"))
    assert "workspace" not in direct.buffers.kind
    assert much.buffers.kind.count("workspace") == 17
    assert much.peak_load > direct.peak_load


def test_an_unknown_kernel_is_refused() -> None:
    model = SMALL["mlp"]()
    trace = Plan((Variant(0, "matmul_fast", 5, 0),), model.trace.n).apply(model.trace)
    with pytest.raises(ValueError, match=r"op 0 \(matmul_fast\): it can be done by matmul"):
        prepare(trace, best_fit(trace), Emulator(), model.launch(reference))


def test_a_kind_of_convolution_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="kind: 'fft' is unknown; there are direct, im2col, winograd"):
        cnn(conv="fft")


def test_a_kernel_that_refuses_its_arrays_is_named() -> None:
    graph = Graph()
    x = graph.constant("x", np.ones((2, 3), np.float32))
    graph.op("relu", [x], Tensor("y", (3, 2)))
    model = graph.model("wrong")
    with pytest.raises(ExecutionError, match=r"op 0 \(relu\): .*shape"):
        train(model, 1)


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
    assert less.peak_load < model.trace.peak_load
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


@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_a_gradient_is_copied_only_where_a_layer_changes_it_in_place(drop: float) -> None:
    ops = transformer(batch=2, length=4, blocks=3, drop=drop).trace.ops
    assert [op.name for op in ops].count("copy") == (6 if drop else 0)


def test_what_takes_two_ways_is_not_changed_in_place() -> None:
    graph = Graph()
    h = dense(graph, "h", graph.constant("x", np.ones((2, 3), np.float32)), 3)
    with pytest.raises(ValueError, match="two: a layer works in place on h, which others take as well"):
        skip(graph, "two", h, lambda h: relu(graph, h))
    with pytest.raises(ValueError, match=r"two: the branch makes \(2, 4\), what it is added to is \(2, 3\)"):
        skip(graph, "two", h, lambda h: dense(graph, "wide", h, 4))
    with pytest.raises(ValueError, match=r"a: x has the shape \(2, 3\), expected a multiple of length, 2, by .* 2"):
        self_attention(graph, "a", h, length=2, heads=2)
    with pytest.raises(ValueError, match="pool: 2 x 3 is not square, so it needs a size"):
        average_pool(graph, "pool", Tensor("image", (1, 1, 2, 3)))


def test_self_attention_is_that_of_each_head_and_sequence() -> None:
    graph, x = Graph(seed=3), np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    y = self_attention(graph, "a", graph.constant("x", x), length=3, heads=2)  # two sequences of three places
    graph.op("copy", [y], graph.constant("kept", np.zeros((6, 4), np.float32)))
    state = train(graph.model("attention"), 1)
    expected = np.zeros((6, 4))
    for head in range(2):
        q, k, v = (x @ state[f"a.{what}.w"][head] for what in "qkv")
        for t in range(6):
            before = slice(t // 3 * 3, t + 1)  # of the same sequence
            weights = np.exp(k[before] @ q[t] / 2**0.5)
            expected[t] += weights @ v[before] / weights.sum() @ state["a.o.w"][head]
    np.testing.assert_allclose(state["kept"], expected, 1e-4, 1e-5)


def test_reshaping_keeps_the_bytes() -> None:
    with pytest.raises(ValueError, match=r"y: \(3, 2\) does not reshape to \(5,\)"):
        Tensor("y", (3, 2)).reshape(5)


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


def test_lifetimes_follow_from_use() -> None:
    graph = Graph(seed=1)
    data, answers = blobs((4, 1, 4, 4), 2)
    x, labels = graph.constant("x", data), graph.constant("labels", answers)
    h = max_pool(graph, "pool", relu(graph, conv2d(graph, "conv", x, 2)))
    softmax_loss(graph, dense(graph, "out", h, 2), labels)
    sgd(graph)
    trace = graph.model("tiny").trace
    accesses = trace.accesses().op.tolist()
    for b, ops in zip(trace.buffers, accesses):
        if not b.persistent:
            assert (b.start, b.end) == (ops[0], ops[-1] + 1)
    assert {b.kind for b in trace.buffers if b.persistent} == {"input", "parameter", "state", "loss"}


def test_a_model_is_deterministic() -> None:
    builds: list[Callable[[], Model]] = [mlp, cnn, MODELS["cnn-norm"], residual, transformer]
    for build in builds:
        a, b = train(build(), 3, 1), train(build(), 3, 2)
        assert all(np.array_equal(a[key], b[key]) for key in a)
