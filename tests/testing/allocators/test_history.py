"""Requests are played on an allocator, and printed as a program; those that mean nothing do nothing."""

from __future__ import annotations

from hypothesis import given

from gpumem.testing import Allocate, Free, Player, Request, Witness, WrongFree, play
from gpumem.testing.allocators.request_strategies import requests
from tests import faulty


def test_requests_that_mean_nothing_do_nothing() -> None:
    player = Player(Witness(faulty.FirstFit()))
    history: list[Request] = [Free(0), WrongFree(0), Allocate(0, 4), Allocate(1, 10**6), Free(1), WrongFree(0), Free(0)]
    for request in [*history, Free(0), WrongFree(0), WrongFree(-1, -1), Allocate(2, 0)]:
        player.perform(request)
    assert player.done == [Allocate(0, 4), Allocate(1, 10**6), Free(0), WrongFree(0), WrongFree(-1, -1), Allocate(2, 0)]
    assert player.offsets == [0, None, None]
    assert player.log == [
        "p0 = a.allocate(4)  # 0",
        "p1 = a.allocate(1000000)  # MemoryError",
        "a.free(p0)",
        "a.free(0)  # ValueError",
        "a.free(-1)  # ValueError",
        "p2 = a.allocate(0)  # ValueError",
    ]


@given(requests(max_size=4096))
def test_requests_can_be_played(found: list[Allocate | Free]) -> None:
    offsets = play(faulty.FirstFit(), found)
    assert len(offsets) == sum(isinstance(request, Allocate) for request in found)
