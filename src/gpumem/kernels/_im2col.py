"""How much workspace the convolutions by im2col need."""

from __future__ import annotations

from gpumem.kernels._shapes import conv_output


def im2col_floats(x_shape: tuple[int, ...], w_shape: tuple[int, ...], padding: int = 1, stride: int = 1) -> int:
    """Return the floats of workspace for x (N, C, H, W) and w (K, C, R, S): one (C*R*S, P*Q) matrix for each image.

    >>> im2col_floats((2, 3, 8, 8), (4, 3, 3, 3))  # 2 images of 27 rows and 64 columns
    3456
    """
    images, _, rows, columns = conv_output(x_shape, w_shape, padding, stride)
    return images * x_shape[1] * w_shape[2] * w_shape[3] * rows * columns
