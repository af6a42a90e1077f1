"""All ops as Numba CUDA kernels, under the names of `reference`: results are the same, the stream is not ignored.

Arrays are C-contiguous device arrays of Numba; the stream is a `cuda.core.Stream`. Nothing allocates or waits.
"""

from __future__ import annotations

from gpumem.kernels.device.conv2d import (
    conv2d as conv2d,
    conv2d_input_gradient as conv2d_input_gradient,
    conv2d_weight_gradient as conv2d_weight_gradient,
)
from gpumem.kernels.device.elementwise import (
    adam as adam,
    add as add,
    bias as bias,
    bias_gradient as bias_gradient,
    copy as copy,
    relu as relu,
    relu_gradient as relu_gradient,
    sgd as sgd,
    tick as tick,
)
from gpumem.kernels.device.im2col import (
    conv2d_im2col as conv2d_im2col,
    conv2d_input_gradient_im2col as conv2d_input_gradient_im2col,
    conv2d_weight_gradient_im2col as conv2d_weight_gradient_im2col,
)
from gpumem.kernels.device.loss import (
    mean as mean,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_gradient as softmax_cross_entropy_gradient,
)
from gpumem.kernels.device.matmul import batched_matmul as batched_matmul, matmul as matmul
from gpumem.kernels.device.norm import (
    batch_norm as batch_norm,
    batch_norm_gradient as batch_norm_gradient,
    dropout as dropout,
    dropout_gradient as dropout_gradient,
    layer_norm as layer_norm,
    layer_norm_gradient as layer_norm_gradient,
)
from gpumem.kernels.device.placement import load_profile as load_profile, overlap as overlap, placement as placement
from gpumem.kernels.device.pooling import (
    average_pool as average_pool,
    average_pool_gradient as average_pool_gradient,
    max_pool as max_pool,
    max_pool_gradient as max_pool_gradient,
)
from gpumem.kernels.device.transformer import (
    attention as attention,
    attention_gradient as attention_gradient,
    embedding as embedding,
    embedding_gradient as embedding_gradient,
    gelu as gelu,
    gelu_gradient as gelu_gradient,
    softmax as softmax,
    softmax_gradient as softmax_gradient,
)
from gpumem.kernels.device.winograd import (
    conv2d_input_gradient_winograd as conv2d_input_gradient_winograd,
    conv2d_winograd as conv2d_winograd,
)
from gpumem.kernels.device.words import (
    advance as advance,
    checksum as checksum,
    clear as clear,
    delay as delay,
    fill as fill,
)
from gpumem.kernels.prebound import prebinding
from gpumem.kernels.reference import __all__ as __all__
from gpumem.kernels.shapes import im2col_floats as im2col_floats, winograd_floats as winograd_floats

for _name in __all__:
    prebinding(globals()[_name])
