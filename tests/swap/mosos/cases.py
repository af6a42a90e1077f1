"""Random nodes, rules and limits of MO-SOS."""

from __future__ import annotations

import numpy as np

from gpumem.swap.mosos import Nodes, Rules, least, solve
from tests.swap.mosos.oracle import random_nodes


def rules_of(rng: np.random.Generator, nodes: Nodes) -> Rules:
    by = np.array([rng.integers(len(row)) for row in nodes.implementations])
    flag = lambda share: bool(rng.random() < share)  # noqa: E731
    return Rules(
        copies=flag(0.8),
        recompute=flag(0.8),
        since=int(rng.integers(len(nodes))) if flag(0.2) else 0,
        by=by if flag(0.2) else None,
        plain=flag(0.4),
        duplex=flag(0.7),
    )


def case(seed: int, n: int) -> tuple[Nodes, Rules, int]:
    rng = np.random.default_rng(seed)
    nodes = random_nodes(rng, n, shape=("any", "valley")[seed % 2])
    rules = rules_of(rng, nodes)
    loose, low = solve(nodes, 10**6, rules).schedule, least(nodes, rules).value
    assert loose is not None
    return nodes, rules, int(rng.integers(low - (seed % 8 == 0), max(loose.memory.max(), low) + 1))
