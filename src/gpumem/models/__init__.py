"""Small training steps made of gpumem's kernels: a trace to plan for, a launch to run, a state to compare.

`graph` builds a step out of tensors and ops, `layers` are functions over it; `mlp` and `cnn` are made of them. `MODELS`
names them for the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.models.cnn import cnn as cnn
    from gpumem.models.graph import Graph as Graph
    from gpumem.models.graph import Model as Model
    from gpumem.models.graph import Step as Step
    from gpumem.models.graph import Tensor as Tensor
    from gpumem.models.layers import adam as adam
    from gpumem.models.layers import conv2d as conv2d
    from gpumem.models.layers import dense as dense
    from gpumem.models.layers import max_pool as max_pool
    from gpumem.models.layers import relu as relu
    from gpumem.models.layers import sgd as sgd
    from gpumem.models.layers import softmax_loss as softmax_loss
    from gpumem.models.measure import measure as measure
    from gpumem.models.measure import measured as measured
    from gpumem.models.measure import measured_machine as measured_machine
    from gpumem.models.mlp import mlp as mlp
    from gpumem.models.named import MODELS as MODELS
    from gpumem.models.task import blobs as blobs

face(__name__)
