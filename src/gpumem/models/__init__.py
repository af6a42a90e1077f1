"""Small training steps made of gpumem's kernels: a trace to plan for, a launch to run, a state to compare."""

from collections.abc import Callable
from functools import partial

from gpumem.models.cnn import cnn
from gpumem.models.graph import Graph, Model, Step, Tensor
from gpumem.models.measure import measure
from gpumem.models.mlp import mlp

MODELS: dict[str, Callable[..., Model]] = {
    "mlp": mlp,
    "mlp-adam": partial(mlp, optimiser="adam"),
    "cnn": cnn,
    "cnn-adam": partial(cnn, optimiser="adam"),
    "cnn-im2col": partial(cnn, conv="im2col"),
}

__all__ = ["MODELS", "Graph", "Model", "Step", "Tensor", "cnn", "measure", "mlp"]
