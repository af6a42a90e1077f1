"""Allocators that are right and those with a bug, the seeds they are tried with, and what a strategy draws."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import Phase, given, settings, strategies as st

from tests import faulty

SEEDS = (0, 1)
RIGHT = (faulty.FirstFit, faulty.Endless, faulty.OneStream, partial(faulty.FirstFit, 64 * 2**20, 512))
BUGS = sorted(faulty.ALLOCATORS, key=str)


def name(factory: Any) -> str:
    return getattr(factory, "__name__", None) or f"{factory.func.__name__}{factory.args}"


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def keep(one: Any) -> None:
        found.append(one)

    keep()
    return found
