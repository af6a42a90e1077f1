"""What a graph of ops becomes: steps with their kernels, workspaces and lifetimes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem import Variant
from gpumem.base.errors import ExecutionError
from gpumem.execute import Emulator, prepare
from gpumem.execute.models import Graph, Tensor, blobs, cnn
from gpumem.execute.models.layers import conv2d, dense, max_pool, relu, sgd, softmax_loss
from gpumem.kernels import reference
from gpumem.pool.smartpool.offline import best_fit
from gpumem.swap.plan import Plan
from tests.execute.models.training import SMALL, train


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


def test_the_workspace_is_in_the_trace() -> None:
    direct, much = (cnn(batch=4, conv=kind).trace for kind in ("direct", "im2col"))
    assert "workspace" not in direct.buffers.kind
    assert much.buffers.kind.count("workspace") == 17
    assert much.peak_live_bytes > direct.peak_live_bytes


def test_an_unknown_kernel_is_refused() -> None:
    model = SMALL["mlp"]()
    trace = Plan((Variant(0, "matmul_fast", 5, 0),), model.trace.n).apply(model.trace)
    with pytest.raises(ValueError, match=r"op 0 \(matmul_fast\): it can be done by matmul"):
        prepare(trace, best_fit(trace), Emulator(), model.launch(reference))


def test_a_kernel_that_refuses_its_arrays_is_named() -> None:
    graph = Graph()
    x = graph.constant("x", np.ones((2, 3), np.float32))
    graph.op("relu", [x], Tensor("y", (3, 2)))
    model = graph.model("wrong")
    with pytest.raises(ExecutionError, match=r"op 0 \(relu\): .*shape"):
        train(model, 1)


def test_reshaping_keeps_the_bytes() -> None:
    with pytest.raises(ValueError, match=r"y: \(3, 2\) does not reshape to \(5,\)"):
        Tensor("y", (3, 2)).reshape(5)


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
