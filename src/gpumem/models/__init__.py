"""Small training steps made of gpumem's kernels: a trace to plan for, a launch to run, a state to compare."""

from gpumem.models.cnn import cnn
from gpumem.models.graph import Graph, Model, Step, Tensor
from gpumem.models.measure import measure
from gpumem.models.mlp import mlp

MODELS = {"mlp": mlp, "cnn": cnn}

__all__ = ["MODELS", "Graph", "Model", "Step", "Tensor", "cnn", "measure", "mlp"]
