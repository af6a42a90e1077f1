"""Requests that are drawn are legal, shrink well, and have the sizes that matter."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings

from gpumem.testing import Allocate, Free, play
from gpumem.testing.allocators.request_strategies import request_sizes, requests
from tests import faulty
from tests.testing.tried import drawn


@given(requests(max_size=5000, streams=3))
def test_requests_are_legal(found: list[Allocate | Free]) -> None:
    live: set[int] = set()
    for k, request in enumerate(found):
        if isinstance(request, Allocate):
            assert 1 <= request.size <= 5000
            assert request.block == sum(isinstance(r, Allocate) for r in found[:k])
            live.add(request.block)
        else:
            live.remove(request.block)
        assert 0 <= request.stream < 3


@pytest.mark.slow
def test_requests_shrink_to_the_few_that_matter() -> None:
    def reuses(found: list[Allocate | Free]) -> bool:
        offsets = [offset for offset in play(faulty.FirstFit(), found) if offset is not None]
        return len(set(offsets)) < len(offsets)

    options = settings(database=None, deadline=None, max_examples=100, derandomize=True)
    small = find(requests(max_size=8, max_requests=6), reuses, settings=options)
    assert small == [Allocate(0, 1), Free(0), Allocate(1, 1)]


def test_sizes_are_often_next_to_what_allocators_round_to() -> None:
    sizes = drawn(request_sizes(2**26), 300)
    beside = [size for size in sizes if any((size + d) % unit == 0 for unit in (256, 2**20) for d in (-1, 0, 1))]
    assert len(beside) > 60 and max(sizes) <= 2**26 and min(sizes) >= 1
    assert max(drawn(request_sizes(5), 50)) <= 5
