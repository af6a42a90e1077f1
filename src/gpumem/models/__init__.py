"""Small training steps made of gpumem's kernels: a trace to plan for, a launch to run, a state to compare.

`graph` builds a step out of tensors and ops, `layers` are functions over it; `mlp` and `cnn` are made of them. `MODELS`
names them for the command line.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.models.cnn import cnn as cnn
    from gpumem.models.graph import Graph as Graph, Model as Model, Tensor as Tensor
    from gpumem.models.layers import (
        adam as adam,
        conv2d as conv2d,
        dense as dense,
        max_pool as max_pool,
        relu as relu,
        sgd as sgd,
        softmax_loss as softmax_loss,
    )
    from gpumem.models.measure import measure as measure
    from gpumem.models.mlp import mlp as mlp
    from gpumem.models.named import MODELS as MODELS
    from gpumem.models.task import blobs as blobs

face(__name__)
