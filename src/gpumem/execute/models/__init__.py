"""Small training steps made of gpumem's kernels: a trace to plan for, a launch to run, a state to compare.

`graph` builds a step out of tensors and ops, `layers` and `transformer` are functions over it, `networks` are made of
them; `gpumem.execute.latency.measured` times a step on a backend.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.execute.models.graph import Graph as Graph, Model as Model, Tensor as Tensor
    from gpumem.execute.models.layers import (
        adam as adam,
        average_pool as average_pool,
        batch_norm as batch_norm,
        conv2d as conv2d,
        dense as dense,
        dropout as dropout,
        max_pool as max_pool,
        relu as relu,
        sgd as sgd,
        skip as skip,
        softmax_loss as softmax_loss,
    )
    from gpumem.execute.models.networks import (
        MODELS as MODELS,
        blobs as blobs,
        cnn as cnn,
        mlp as mlp,
        patterns as patterns,
        residual as residual,
        transformer as transformer,
    )
    from gpumem.execute.models.transformer import (
        embedding as embedding,
        gelu as gelu,
        layer_norm as layer_norm,
        positions as positions,
        self_attention as self_attention,
    )

lazy_interface(__name__)
