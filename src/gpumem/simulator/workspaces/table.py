"""The table of algorithms: which convolutions they can do, what workspace they need, how long they take.

A time is the sum over an algorithm's passes of what the roofline gives each: the larger of its arithmetic and of the
bytes that it moves, with `BALANCE` flops in the time of a byte. Only ratios count.

Sources
-------
[1] Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, arXiv 1410.0759 (2014), section 3: lowering a batch
    to a matrix of `C R S` by `N P Q`, and the same without the matrix in memory.
[2] Lavin, Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016 (arXiv 1509.09308): `F(m x m, r x r)`
    takes `(m + r - 1)^2` products a tile and pair of channels; algorithm 1 has all three transformed operands in
    memory, the fused kernel the transformed filter only.
[3] Mathieu, Henaff, LeCun, Fast Training of Convolutional Networks through FFTs, ICLR 2014 (arXiv 1312.5851): images,
    filters and outputs are transformed, with products per frequency, in all three directions alike.
[4] Vasilache et al., Fast Convolutional Nets with fbfft, ICLR 2015 (arXiv 1412.7580): three buffers in the frequency
    domain, half of the frequencies as the signals are real, powers of two up to 256; tiles.
[5] NVIDIA, cuDNN Library User Guide, version 5.1: `cudnnConvolutionFwdAlgo_t` and its two siblings, and the conditions
    under `cudnnConvolutionForward`, `...BackwardData`, `...BackwardFilter`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpumem.simulator.workspaces.shapes import INPUT_GRADIENT, WEIGHT_GRADIENT, Convolution
from gpumem.trace import Shape

# Flops in the time of a byte: 11.34e12 a second at 0.33 over 484e9 at 0.75, the GTX 1080 Ti as `Machine` has it.
BALANCE = 10.0
TILE = 32  # of tiled FFT [5]
LARGEST_FFT = 256  # [4], [5]
FUSED, UNFUSED = 2, 4  # outputs of a Winograd tile, in each dimension: F(2x2, 3x3) and F(4x4, rxr) [2]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of a table.

    Parameters
    ----------
    name : str
    fits : callable
        `fits(convolution)` says whether it can do that one.
    workspace : callable
        `workspace(convolution)` returns bytes.
    time : callable
        `time(convolution)` returns how long it takes; the unit is the table's own, and the same for all of it.
    source : str
        Where the formulas are from.
    """

    name: str
    fits: Callable[[Convolution], bool]
    workspace: Callable[[Convolution], int]
    time: Callable[[Convolution], float]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a transform cuts a convolution: how many tiles, numbers of a transformed tile, flops of a pair of them."""

    tiles: int
    numbers: int
    flops: int

    def spectra(self, convolution: Convolution) -> tuple[int, int, int]:
        """Bytes of the transformed images, filters and outputs."""
        pairs = convolution.outputs * (convolution.inputs // convolution.groups)
        planes = (self.tiles * convolution.inputs, pairs, self.tiles * convolution.outputs)
        return (
            planes[0] * self.numbers * convolution.itemsize,
            pairs * self.numbers * convolution.itemsize,
            planes[2] * self.numbers * convolution.itemsize,
        )

    def products(self, convolution: Convolution) -> int:
        """Flops between the transforms."""
        return self.tiles * convolution.outputs * (convolution.inputs // convolution.groups) * self.flops


def _pass(flops: float, *moved: int) -> float:
    """The time of one pass over memory."""
    return max(flops, BALANCE * sum(moved))


def _operands(convolution: Convolution) -> tuple[int, int, int]:
    return convolution.image_bytes, convolution.filter_bytes, convolution.output_bytes


def _overlaps(convolution: Convolution) -> bool:
    """Whether lowering copies anything: a 1x1 filter of stride 1 finds its matrix in the image."""
    return max(*convolution.filter, *convolution.stride, *(pad + 1 for pad in convolution.padding)) > 1


def _lowered(convolution: Convolution) -> int:
    """Bytes of the matrix that the images are lowered to."""
    return (
        convolution.batch
        * convolution.inputs
        * math.prod(convolution.filter)
        * math.prod(convolution.output)
        * convolution.itemsize
    )


def _by_lowering(convolution: Convolution) -> float:
    image, weights, output = _operands(convolution)
    matrix = _lowered(convolution)
    return _pass(0, image, matrix) + _pass(2 * convolution.products, matrix, weights, output)


def _plane(convolution: Convolution) -> bool:
    """Whether it is 2-d, of stride 1 and not dilated, as all transforms need it."""
    return len(convolution.filter) == 2 and set(convolution.stride) == {1} == set(convolution.dilation)


def _tiles(convolution: Convolution, step: Shape) -> int:
    """How many tiles of `step` outputs a batch has; the input gradient's outputs are the images."""
    space = convolution.image if convolution.direction == INPUT_GRADIENT else convolution.output
    return convolution.batch * math.prod(-(-extent // outputs) for extent, outputs in zip(space, step))


def _winograd(convolution: Convolution, outputs: int) -> Tiling:
    tile = math.prod(outputs + side - 1 for side in convolution.filter)
    return Tiling(_tiles(convolution, (outputs,) * len(convolution.filter)), tile, 2 * tile)


def _frequencies(sides: Sequence[int]) -> int:
    """Complex numbers of a transformed real signal."""
    return math.prod(sides[:-1]) * (sides[-1] // 2 + 1)


def _whole(convolution: Convolution) -> Tiling:
    """FFT of whole images, padded to powers of two; a complex product is four multiplications and as many additions."""
    sides = [1 << (side + 2 * pad - 1).bit_length() for side, pad in zip(convolution.image, convolution.padding)]
    return Tiling(convolution.batch, 2 * _frequencies(sides), 8 * _frequencies(sides))


def _tiled(convolution: Convolution) -> Tiling:
    frequencies = _frequencies((TILE, TILE))
    return Tiling(
        _tiles(convolution, tuple(TILE - side + 1 for side in convolution.filter)), 2 * frequencies, 8 * frequencies
    )


def _by_transforms(
    name: str, fits: Callable[[Convolution], bool], cut: Callable[[Convolution], Tiling], source: str
) -> Algorithm:
    """An algorithm with all three transformed operands in memory: two transforms, the products, and one back."""

    def time(convolution: Convolution) -> float:
        tiling = cut(convolution)
        spectra = tiling.spectra(convolution)
        there_and_back = sum(_pass(0, before, after) for before, after in zip(_operands(convolution), spectra))
        return there_and_back + _pass(tiling.products(convolution), *spectra)

    return Algorithm(
        name, fits, workspace=lambda convolution: sum(cut(convolution).spectra(convolution)), time=time, source=source
    )


def _fused(convolution: Convolution) -> float:
    """The filter's transform, then all else in one kernel."""
    tiling = _winograd(convolution, FUSED)
    image, weights, output = _operands(convolution)
    transformed = tiling.spectra(convolution)[1]
    return _pass(0, weights, transformed) + _pass(tiling.products(convolution), image, transformed, output)


def _small(convolution: Convolution) -> bool:
    return all(side > pad for side, pad in zip(convolution.filter, convolution.padding))


TABLE: tuple[Algorithm, ...] = (
    Algorithm(
        "implicit-gemm",
        lambda convolution: True,
        workspace=lambda convolution: 0,
        time=lambda convolution: _pass(2 * convolution.products, *_operands(convolution)),
        source="[1] section 3; [5]: no workspace",
    ),
    Algorithm("gemm", _overlaps, workspace=_lowered, time=_by_lowering, source="[1] section 3"),
    Algorithm(
        "winograd",
        lambda convolution: (
            _plane(convolution) and convolution.filter == (3, 3) and convolution.direction != WEIGHT_GRADIENT
        ),
        workspace=lambda convolution: _winograd(convolution, FUSED).spectra(convolution)[1],
        time=_fused,
        source="[2] F(2x2, 3x3), fused; [5]: 3x3, not for weight gradients",
    ),
    _by_transforms(
        "winograd-nonfused",
        lambda convolution: _plane(convolution) and convolution.filter in ((3, 3), (5, 5)),
        lambda convolution: _winograd(convolution, UNFUSED),
        "[2] algorithm 1, F(4x4, rxr); [5]: 3x3 and 5x5",
    ),
    _by_transforms(
        "fft",
        lambda convolution: (
            _plane(convolution)
            and _small(convolution)
            and all(side + 2 * pad <= LARGEST_FFT for side, pad in zip(convolution.image, convolution.padding))
        ),
        _whole,
        "[3], [4]; [5]: padded images up to 256, filters larger than the padding",
    ),
    _by_transforms(
        "fft-tiling",
        lambda convolution: _plane(convolution) and _small(convolution) and max(convolution.filter) <= TILE,
        _tiled,
        "[4] tiles; [5]: tiles of 32x32",
    ),
)
