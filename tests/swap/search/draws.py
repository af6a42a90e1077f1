"""The random draws of a step, said beforehand, so that a test sees what each of them leads to."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.plain import plain


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


def drawing(module: ModuleType, draws: Draws, **others: Any) -> SimpleNamespace:
    """Return the loops of a module as Python, which take these draws and call `others` by their names."""
    loops = plain(module)
    for loop in vars(loops).values():
        if getattr(loop, "__module__", None) == module.__name__ and hasattr(loop, "__globals__"):
            loop.__globals__.update({"draw": draws, **others})
    return loops
