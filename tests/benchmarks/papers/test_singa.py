"""What SINGA's layers keep: a small net by hand, the bundled ones by what must hold."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.singa import CNMEM_POOL, as_singa, cnmem
from gpumem import io
from gpumem.simulator import workspaces
from gpumem.trace import Buffers, Ops, Trace


def net(*, in_place: bool) -> Trace:
    """Norm, ReLU, pooling, dropout, and back: buffers 0 to 4 forward, 5 to 7 gradients, 8 a ReLU out of place."""
    r = 0 if in_place else 8
    reads = [[], [0], [r], [1], [3], [5, 4], [6, r, 2], [7, r]]
    writes = [[0], [r], [1, 2], [3, 4], [5], [6], [7], [5]]
    names = ["native_batch_norm", "relu_" if in_place else "relu", "max_pool2d_with_indices", "native_dropout", "mm"]
    names += ["native_dropout_backward", "max_pool2d_with_indices_backward", "threshold_backward"]
    size, start, end = [64, 16, 32, 16, 16, 16, 16, 64, 64], [0, 2, 2, 3, 3, 4, 5, 6, 1], [8, 4, 7, 5, 6, 8, 7, 8, 8]
    if not in_place:
        end[0] = 2
    count = 8 if in_place else 9
    kinds = ["temp"] * count
    return Trace(
        Buffers.make(size[:count], start[:count], end[:count], kind=kinds),
        Ops.make(reads, writes, name=[f"{name}.default" for name in names]),
    )


@pytest.mark.parametrize("in_place", [True, False])
def test_by_hand(in_place: bool) -> None:
    found = as_singa(net(in_place=in_place))
    b, reads, writes = found.buffers, found.ops.reads.tolist(), found.ops.writes.tolist()
    assert writes[1] == [8] and reads[1] == [0] and reads[2] == [8]
    assert reads[7] == [7, 0]  # the ReLU's backward op reads its input
    assert reads[6] == [6, 8, 2, 1]  # that of pooling its input and its output, and indices of no bytes
    assert b.size.tolist() == [64, 16, 0, 16, 2, 16, 16, 64, 64]
    lives = list(zip(b.start.tolist(), b.end.tolist()))
    assert (lives[0], lives[1], lives[8]) == ((0, 8), (2, 7), (1, 7))
    assert b.kind[0] == "activation" and b.of[8] == (-1 if in_place else 8)


def test_relu_in_place_or_not_makes_no_difference() -> None:
    assert as_singa(net(in_place=True)).live_bytes().tolist() == as_singa(net(in_place=False)).live_bytes().tolist()


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_recorded_nets_hold_more_and_read_what_was_written(name: str) -> None:
    trace = io.bundled(name)
    found = as_singa(trace)
    assert found.n == trace.n and found.ops.name == trace.ops.name and found.peak_live_bytes > trace.peak_live_bytes
    written = np.zeros(len(found.buffers), bool)
    written[found.buffers.persistent] = True
    for i in range(found.n):
        fresh = found.buffers.start == 0
        assert (written | fresh)[found.ops.reads[i]].all(), i
        written[found.ops.writes[i]] = True
    assert workspaces.convolutions(found) == workspaces.convolutions(trace)


def test_what_has_none_of_these_ops_stays() -> None:
    trace = io.bundled("mlp3")
    found = as_singa(Trace(trace.buffers, Ops.make(trace.ops.reads, trace.ops.writes)))
    assert found.live_bytes().tolist() == trace.live_bytes().tolist()


def test_its_cnmem_grows_by_blocks_of_their_own() -> None:
    pool = cnmem()
    first = pool.allocate(CNMEM_POOL // 2)
    pool.allocate(CNMEM_POOL)
    assert pool.statistics.reserved.peak == 2 * CNMEM_POOL
    pool.free(first)
    pool.allocate(CNMEM_POOL + 512)  # more than either block
    assert pool.statistics.reserved.peak == 3 * CNMEM_POOL + 512
