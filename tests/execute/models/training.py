"""Models so small that finite differences are quick, and a run of some iterations on the emulator."""

from __future__ import annotations

import numpy as np

from gpumem.execute import Emulator, Launch, run
from gpumem.execute.models import Model, cnn, mlp, residual, transformer
from gpumem.kernels import reference
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Trace

SMALL = {
    "mlp": lambda: mlp(batch=6, features=5, hidden=(7, 4), classes=3),
    "cnn": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3),
    "cnn-im2col": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3, conv="im2col"),
    "cnn-winograd": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3, conv="winograd"),
    "cnn-norm": lambda: cnn(batch=4, side=8, channels=(2, 3), classes=3, norm=True, drop=0.25),
    "residual": lambda: residual(batch=4, side=8, channels=(2, 3), classes=3),
    "transformer": lambda: transformer(2, length=5, width=6, heads=2, blocks=2, vocabulary=5, period=2, drop=0.25),
}


def train(
    model: Model, iterations: int, order: int = 0, trace: Trace | None = None, launch: Launch | None = None
) -> dict[str, np.ndarray]:
    """Every persistent tensor afterwards, by name."""
    trace, state = trace or model.trace, model.state()
    options = {"host": best_fit(trace.host_side()), "state": state}
    run(trace, best_fit(trace), Emulator(order), launch or model.launch(reference), iterations, **options)
    return {name: state[i] for name, i in model.names.items()}
