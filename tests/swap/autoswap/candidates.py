"""The ops of a candidate, naively."""

from __future__ import annotations

import numpy as np

from gpumem.swap.autoswap.scores import Candidates
from gpumem.trace import I64


def ops_of(candidates: Candidates, gap: int) -> I64:
    """The ops of a gap, strictly between its accesses."""
    return np.arange(candidates.gaps.after[gap] + 1, candidates.gaps.before[gap]) % len(candidates.load)
