"""The random draws of a step, said beforehand, so that a test sees what each of them leads to."""

from __future__ import annotations

from collections.abc import Iterator


class Draws:
    """Draws that a step has to take in this order, each below what it asks for; and all of them."""

    def __init__(self, *values: int) -> None:
        self.left: Iterator[int] = iter(values)
        self.below: list[int] = []  # of each draw so far

    def __call__(self, random: object, below: int) -> int:
        self.below.append(below)
        value = next(self.left)
        assert 0 <= value < below, f"draw {len(self.below)} of {value} is not below {below}"
        return value

    def all_taken(self) -> bool:
        return next(self.left, None) is None
