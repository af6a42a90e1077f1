"""First fit as the annealing repeats it from any place of an order on, against first fit as it is."""

from __future__ import annotations

import numpy as np

from gpumem.pool.search.annealing import Packing, meetings, refit
from gpumem.pool.smartpool.offline import fit
from tests.pool.search.instances import crowd


def test_an_order_is_placed_by_first_fit_from_any_place_on() -> None:
    b = (trace := crowd(1, 30, 20)).buffers
    order = np.random.default_rng(0).permutation(30)
    want = np.zeros(30, np.int64)
    fit(trace, order, first=0, alignment=1, smallest=False, offset=want)
    meet = meetings(b.start, b.end, trace.n)
    offset, top, stack = np.zeros((3, 30), np.int64)
    packing = Packing(order, offset, top, stack)
    height, _ = refit(b.size, meet, packing, first=0, limit=np.inf)
    assert (offset.tolist(), height) == (want.tolist(), int((want + b.size).max()))
    stack[:12] = order[:12][np.argsort(want[order[:12]], kind="stable")]
    offset[order[12:]] = -1
    assert refit(b.size, meet, packing, first=12, limit=np.inf)[0] == height
    assert offset.tolist() == want.tolist()
