"""The pool planners and the online allocators by name: tables for the command line, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpumem.pool.allocators import BFC, Buddy, Caching, CnMem, MultiStream, Native
from gpumem.pool.allocators.protocol import Pool
from gpumem.pool.search import exact, greedy, search
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.trace.placement import Placement

PLANNERS: dict[str, Callable[..., Placement]] = {
    "best-fit": best_fit,
    "first-fit": first_fit,
    "greedy": greedy,
    "search": search,
    "exact": exact,
}
ALLOCATORS: dict[str, Callable[..., Pool]] = {
    "native": Native,
    "cnmem": CnMem,
    "bfc": BFC,
    "caching": Caching,
    "expandable": partial(Caching, expandable_segments=True),
    "buddy": Buddy,
    "streams": MultiStream,
}
