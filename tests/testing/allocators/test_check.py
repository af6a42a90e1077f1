"""What finds bugs in allocators: it accepts right ones, and finds every seeded bug, with any seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gpumem.pool import ALLOCATORS
from gpumem.testing import OPTIONAL, Allocate, ContractError, check_allocator
from gpumem.testing.allocators.check import Trial
from tests import faulty
from tests.testing.tried import BUGS, RIGHT, SEEDS, name

EXEMPT = {  # rules that an allocator breaks by design where there is more than one stream
    "caching": "growth",  # waits for another stream only when there is no room
    "expandable": "growth",
    "cnmem": "recovery",  # a pool for each stream
    "streams": "growth",  # as caching
}


@pytest.mark.parametrize("factory", RIGHT, ids=name)
def test_right_allocators_are_accepted(factory: Callable[[], Any]) -> None:
    for seed in SEEDS:
        check_allocator(factory, seed=seed, examples=42, streams=3)


@pytest.mark.parametrize("factory", BUGS, ids=name)
def test_every_bug_is_found(factory: Callable[[], Any]) -> None:
    for seed in SEEDS:
        with pytest.raises(ContractError) as found:
            check_allocator(factory, seed=seed, examples=200)
        error = found.value
        assert error.rule in faulty.ALLOCATORS[factory], f"seed {seed}: {error}"
        assert len(error.log) <= 12, error
        assert str(error).startswith(f"{error.rule}: ")


@pytest.mark.parametrize("rule", OPTIONAL)
def test_optional_rules_can_be_skipped(rule: str) -> None:
    breaking = [factory for factory, rules in faulty.ALLOCATORS.items() if rules == {rule}]
    assert breaking
    for factory in breaking:
        check_allocator(factory, skip=[rule], examples=28)


def test_what_is_found_is_short_and_can_be_played_again() -> None:
    with pytest.raises(ContractError) as found:
        check_allocator(faulty.LeftNotMerged)
    assert found.value.log == (
        "p0 = a.allocate(1)  # 0",
        "p1 = a.allocate(1)  # 16",
        "a.free(p0)",
        "a.free(p1)",
        "p2 = a.allocate(4096)  # MemoryError",
    )
    assert Trial(faulty.LeftNotMerged).error(found.value.requests, "recovery") is not None
    assert Trial(faulty.FirstFit).error(found.value.requests) is None


def test_the_request_that_is_refused_is_the_one_that_is_told() -> None:
    with pytest.raises(
        ContractError, match=r"^statistics: request 1, after allocate\(\d+\), blocks.current is 2, right is 1"
    ):
        check_allocator(faulty.RefusedCounted)


def test_a_bug_of_a_later_round_is_shown_from_the_beginning() -> None:
    class ThirdTime(faulty.FirstFit):
        """Hands out byte 16 the third time that it is asked."""

        times = 0

        def allocate(self, size: int, *, stream: int = 0) -> int:
            self.times += 1
            return super().allocate(size, stream=stream) + (7 if self.times == 3 else 0)

    with pytest.raises(ContractError) as found:
        Trial(ThirdTime).run([Allocate(0, 1)])
    assert [line.split("  #")[0] for line in found.value.log] == [
        "p0 = a.allocate(1)",
        "a.free(p0)",
        "p1 = a.allocate(1)",
        "a.free(p1)",
        "p2 = a.allocate(1)",
    ]


def test_the_largest_block_of_a_new_allocator() -> None:
    assert Trial(faulty.FirstFit).largest == 4096
    assert Trial(faulty.FirstFit, max_size=10**5).largest == 4096
    assert Trial(faulty.FirstFit, max_size=100).largest == 100
    assert Trial(partial(faulty.FirstFit, 1000)).largest == 992  # rounds to 16
    assert [Trial(partial(faulty.FirstFit, c, 1), max_size=50).largest for c in range(1, 50)] == list(range(1, 50))
    assert Trial(faulty.Endless).largest == 64 * 2**20


def test_every_seed_gives_the_same_error_again() -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(ContractError) as found:
            check_allocator(faulty.InsideFreed, seed=5)
        texts.append(str(found.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 0}, "examples: 0 is below 1"),
        ({"streams": 0}, "streams: 0 is below 1"),
        ({"steps": -1}, "steps: -1 is below 1"),
        ({"max_size": 0}, "max_size: 0 is below 1"),
        ({"skip": ["overlap"]}, "skip: 'overlap' is not one of stream, capacity"),
        ({"skip": ["nonsense"]}, "skip: 'nonsense' is not one of stream, capacity"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_allocator(faulty.FirstFit, **options)


@pytest.mark.parametrize("capacity", [None, 64 * 2**20])
@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_the_allocators_of_the_package(allocator: str, capacity: int | None) -> None:
    factory = partial(ALLOCATORS[allocator], capacity=capacity)
    check_allocator(factory, streams=1, examples=14)
    check_allocator(factory, examples=28, skip=[EXEMPT[allocator]] if allocator in EXEMPT else ())


@pytest.mark.parametrize("allocator", sorted(EXEMPT))
def test_what_is_exempt_is_broken(allocator: str) -> None:
    rule = EXEMPT[allocator]
    factory = partial(ALLOCATORS[allocator], capacity=None if rule == "growth" else 64 * 2**20)
    with pytest.raises(ContractError, match=f"^{rule}: "):
        check_allocator(factory)
