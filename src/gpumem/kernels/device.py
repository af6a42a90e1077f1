"""All ops as Numba CUDA kernels, under the names of `reference`: results are the same, the stream is not ignored.

Arrays are C-contiguous device arrays of Numba; the stream is a `cuda.core.Stream`. Nothing allocates or waits.
"""

from __future__ import annotations

from gpumem.kernels._im2col import im2col_floats
from gpumem.kernels.adam import adam, tick
from gpumem.kernels.add import add
from gpumem.kernels.bias import bias, bias_gradient
from gpumem.kernels.checksum import checksum, clear, fill
from gpumem.kernels.conv2d import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from gpumem.kernels.copy import copy
from gpumem.kernels.cross_entropy import softmax_cross_entropy, softmax_cross_entropy_gradient
from gpumem.kernels.delay import delay
from gpumem.kernels.im2col import conv2d_im2col, conv2d_input_gradient_im2col, conv2d_weight_gradient_im2col
from gpumem.kernels.load_profile import load_profile
from gpumem.kernels.matmul import matmul
from gpumem.kernels.max_pool import max_pool, max_pool_gradient
from gpumem.kernels.mean import mean
from gpumem.kernels.overlap import overlap
from gpumem.kernels.placement import placement
from gpumem.kernels.relu import relu, relu_gradient
from gpumem.kernels.sgd import sgd

__all__ = [
    "adam",
    "add",
    "bias",
    "bias_gradient",
    "checksum",
    "clear",
    "conv2d",
    "conv2d_im2col",
    "conv2d_input_gradient",
    "conv2d_input_gradient_im2col",
    "conv2d_weight_gradient",
    "conv2d_weight_gradient_im2col",
    "copy",
    "delay",
    "fill",
    "im2col_floats",
    "load_profile",
    "matmul",
    "max_pool",
    "max_pool_gradient",
    "mean",
    "overlap",
    "placement",
    "relu",
    "relu_gradient",
    "sgd",
    "softmax_cross_entropy",
    "softmax_cross_entropy_gradient",
    "tick",
]
