"""All ops as Numba CUDA kernels, under the names of `reference`: results are the same, the stream is not ignored.

Arrays are C-contiguous device arrays of Numba; the stream is a `cuda.core.Stream`. Nothing allocates or waits.
"""

from __future__ import annotations

from gpumem.kernels._shapes import im2col_floats as im2col_floats
from gpumem.kernels.bias import bias as bias
from gpumem.kernels.bias import bias_gradient as bias_gradient
from gpumem.kernels.checksum import checksum as checksum
from gpumem.kernels.checksum import clear as clear
from gpumem.kernels.checksum import fill as fill
from gpumem.kernels.conv2d import conv2d as conv2d
from gpumem.kernels.conv2d import conv2d_input_gradient as conv2d_input_gradient
from gpumem.kernels.conv2d import conv2d_weight_gradient as conv2d_weight_gradient
from gpumem.kernels.delay import delay as delay
from gpumem.kernels.elementwise import adam as adam
from gpumem.kernels.elementwise import add as add
from gpumem.kernels.elementwise import copy as copy
from gpumem.kernels.elementwise import relu as relu
from gpumem.kernels.elementwise import relu_gradient as relu_gradient
from gpumem.kernels.elementwise import sgd as sgd
from gpumem.kernels.elementwise import tick as tick
from gpumem.kernels.im2col import conv2d_im2col as conv2d_im2col
from gpumem.kernels.im2col import conv2d_input_gradient_im2col as conv2d_input_gradient_im2col
from gpumem.kernels.im2col import conv2d_weight_gradient_im2col as conv2d_weight_gradient_im2col
from gpumem.kernels.loss import mean as mean
from gpumem.kernels.loss import softmax_cross_entropy as softmax_cross_entropy
from gpumem.kernels.loss import softmax_cross_entropy_gradient as softmax_cross_entropy_gradient
from gpumem.kernels.matmul import matmul as matmul
from gpumem.kernels.max_pool import max_pool as max_pool
from gpumem.kernels.max_pool import max_pool_gradient as max_pool_gradient
from gpumem.kernels.placement import load_profile as load_profile
from gpumem.kernels.placement import overlap as overlap
from gpumem.kernels.placement import placement as placement
from gpumem.kernels.reference import __all__ as __all__
