"""A small synthetic task: noisy points around one centre for each class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def blobs(shape: tuple[int, ...], classes: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a batch of inputs (float32) and their labels (int32); the first side of `shape` is the batch.

    >>> x, labels = blobs((4, 3), classes=2)
    >>> x.shape, labels.tolist()
    ((4, 3), [0, 1, 0, 1])
    """
    rng = np.random.default_rng(seed)
    labels = (np.arange(shape[0]) % classes).astype(np.int32)
    centres = rng.standard_normal((classes, *shape[1:]))
    return (centres[labels] + 0.5 * rng.standard_normal(shape)).astype(np.float32), labels
