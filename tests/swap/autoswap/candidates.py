"""The ops of a candidate, naively."""

from __future__ import annotations

import numpy as np

from gpumem.swap.autoswap.scores import Candidates
from gpumem.trace import I64


def ops_of(c: Candidates, k: int) -> I64:
    """The ops of a gap, strictly between its accesses."""
    return np.arange(c.gaps.after[k] + 1, c.gaps.before[k]) % len(c.load)
