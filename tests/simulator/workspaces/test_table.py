"""The algorithms of the table: who can do what, their bytes by a naive second account, times beside published ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gpumem.simulator.workspaces import TABLE, Convolution
from gpumem.simulator.workspaces.shapes import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from tests.simulator.workspaces.convolutions import BY_NAME

WAYS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


def plane(
    way: str, n: int, c: int, k: int, side: int, r: int = 3, *, pad: int | None = None, **more: Any
) -> Convolution:
    """A 2-d convolution of stride 1 over square images."""
    pad = r // 2 if pad is None else pad
    out = side + 2 * pad - r + 1
    return Convolution(way, n, c, k, (side, side), (out, out), (r, r), (1, 1), (pad, pad), **more)


def naive(name: str, c: Convolution) -> int:
    """The bytes of a 2-d convolution's workspace, numbers counted one array after the other."""
    (h, w), (p, q), (r, s) = c.image, c.output, c.filter
    pairs = c.outputs * c.inputs // c.groups
    numbers = 0
    if name == "gemm":
        numbers = len(range(c.inputs * r * s)) * len(range(c.batch * p * q))
    if name == "winograd":
        numbers = (2 + r - 1) * (2 + s - 1) * pairs
    if name in ("winograd-nonfused", "fft-tiling", "fft"):
        height, width = (h, w) if c.direction == INPUT_GRADIENT else (p, q)
        step, tile = {"winograd-nonfused": (4, (r + 3) * (s + 3)), "fft-tiling": (33 - r, 32 * 17 * 2), "fft": (0, 0)}[
            name
        ]
        tiles = c.batch
        if name == "fft":
            rows, columns = (
                next(2**k for k in range(9) if 2**k >= side + 2 * pad) for side, pad in zip(c.image, c.padding)
            )
            tile = rows * (columns // 2 + 1) * 2
        else:
            tiles *= len(range(0, height, step)) * len(range(0, width, step))
        numbers = tile * (tiles * c.inputs + tiles * c.outputs + pairs)
    return numbers * c.itemsize


PLANES = st.builds(
    plane,
    st.sampled_from(WAYS),
    st.integers(1, 5),
    st.sampled_from([4, 8, 12]),
    st.sampled_from([4, 16]),
    st.integers(8, 40),
    st.sampled_from([1, 3, 5, 7]),
    groups=st.sampled_from([1, 4]),
    itemsize=st.sampled_from([2, 4]),
)


@given(PLANES)
def test_bytes_agree_with_a_naive_account(c: Convolution) -> None:
    fitting = [algorithm for algorithm in TABLE if algorithm.fits(c)]
    assert fitting and "implicit-gemm" in [algorithm.name for algorithm in fitting]
    for algorithm in fitting:
        assert algorithm.workspace(c) == naive(algorithm.name, c) >= 0
        assert algorithm.time(c) > 0


@given(PLANES, st.integers(2, 4))
def test_a_larger_batch_needs_no_less_of_anything(c: Convolution, factor: int) -> None:
    larger = replace(c, batch=c.batch * factor)
    for algorithm in TABLE:
        assert algorithm.fits(larger) == algorithm.fits(c)
        if algorithm.fits(c):
            assert algorithm.workspace(larger) >= algorithm.workspace(c)
            assert algorithm.time(larger) >= algorithm.time(c)


def test_figures_that_others_have_published() -> None:
    fused = BY_NAME["winograd"].workspace
    assert fused(plane(FORWARD, 256, 64, 64, 56)) == 256 * 2**10  # ResNet50's res2a_branch2b: LBANN, pull request 437
    assert fused(plane(FORWARD, 64, 512, 512, 14)) == 16 * 2**20  # VGG's largest: Lavin and Gray, section 6
    lowered = BY_NAME["gemm"].workspace
    assert lowered(plane(FORWARD, 1, 64, 64, 56)) == 9 * 64 * 56 * 56 * 4  # nine times the image: Chetlur et al.


def test_products_fall_as_the_papers_say() -> None:
    """Many channels make transforms cheap: 2.25 and 4 times fewer products, Lavin and Gray, sections 4.2 and 4.3."""
    c = plane(FORWARD, 64, 4096, 4096, 64)
    direct = BY_NAME["implicit-gemm"].time(c)
    assert direct / BY_NAME["winograd"].time(c) == pytest.approx(2.25, rel=0.02)
    assert direct / BY_NAME["winograd-nonfused"].time(c) == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("c", "names"),
    [
        (plane(FORWARD, 2, 8, 8, 16), {"gemm", "winograd", "winograd-nonfused", "fft", "fft-tiling"}),
        (plane(WEIGHT_GRADIENT, 2, 8, 8, 16), {"gemm", "winograd-nonfused", "fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 5), {"gemm", "winograd-nonfused", "fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 7), {"gemm", "fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 255), {"gemm", "winograd", "winograd-nonfused", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 1), {"fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 3, pad=3), {"gemm", "winograd", "winograd-nonfused"}),
        (plane(FORWARD, 2, 8, 8, 60, 33), {"gemm", "fft"}),
        (replace(plane(FORWARD, 2, 8, 8, 16), stride=(2, 2), output=(8, 8)), {"gemm"}),
        (replace(plane(FORWARD, 2, 8, 8, 16), dilation=(2, 2), output=(14, 14)), {"gemm"}),
        (Convolution(FORWARD, 2, 8, 8, (16,), (16,), (3,), (1,), (1,), (1,)), {"gemm"}),
        (Convolution(FORWARD, 2, 8, 8, (4,) * 3, (4,) * 3, (3,) * 3, (1,) * 3, (1,) * 3, (1,) * 3), {"gemm"}),
    ],
)
def test_who_can_do_what(c: Convolution, names: set[str]) -> None:
    assert {algorithm.name for algorithm in TABLE if algorithm.fits(c)} == names | {"implicit-gemm"}
