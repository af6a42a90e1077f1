"""Small models that are trained together, and what each ends with when it is trained by itself."""

from __future__ import annotations

from functools import cache

import numpy as np

from gpumem import best_fit
from gpumem.execute import Emulator, in_issue_order, run
from gpumem.execute.models import Model, cnn, mlp
from gpumem.kernels import reference


@cache
def model(name: str) -> Model:
    """A small model; `net` draws random numbers and keeps statistics."""
    if name == "net":
        return cnn(batch=8, side=4, channels=[2, 3], classes=3, norm=True, drop=0.25)
    return mlp(batch=64, features=8, hidden=(12, 8, 12), classes=3, optimiser=name)


@cache
def alone(name: str, iterations: int) -> dict[int, np.ndarray]:
    """What a model ends with when it is trained by itself."""
    mine, state = model(name), model(name).state()
    launch = mine.launch(reference)
    run(mine.trace, best_fit(mine.trace), Emulator(in_issue_order), launch, iterations, state=state)
    return state
