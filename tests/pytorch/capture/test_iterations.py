"""The pattern in which optimizers step."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gpumem.torch.capture.iterations import period

patterns = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def repeats(order: list[int], n: int, times: int) -> bool:
    """By definition: each of the last steps is that of a period before."""
    return times * n <= len(order) and all(order[-k] == order[-k - n] for k in range(1, (times - 1) * n + 1))


@given(patterns, st.lists(st.integers(0, 2), max_size=9), st.integers(1, 4), st.integers(1, 3))
def test_it_is_the_shortest_that_repeats_and_has_all_in_it(
    pattern: list[int], before: list[int], repeated: int, times: int
) -> None:
    order, needed = before + pattern * repeated, {*pattern}
    fits = [n for n in range(1, len(order) + 1) if repeats(order, n, times) and needed <= {*order[-n:]}]
    assert period(order, needed, times) == (fits[0] if fits else 0)
    if repeated >= times:
        assert 0 < period(order, needed, times) <= len(pattern)


def test_who_steps_seldom_is_waited_for() -> None:
    assert period([0, 0, 0], {0}, 3) == 1 and period([0, 0, 0], {0, 1}, 3) == 0
    assert period([0, 0, 1] * 3, {0, 1}, 3) == 3 and period([0, 0, 1] * 2 + [0, 0], {0, 1}, 3) == 0
