"""The models that the command line knows."""

from collections.abc import Callable
from functools import partial

from gpumem.models.cnn import cnn
from gpumem.models.graph import Model
from gpumem.models.mlp import mlp

MODELS: dict[str, Callable[..., Model]] = {
    "mlp": mlp,
    "mlp-adam": partial(mlp, optimiser="adam"),
    "cnn": cnn,
    "cnn-adam": partial(cnn, optimiser="adam"),
    "cnn-im2col": partial(cnn, conv="im2col"),
}
