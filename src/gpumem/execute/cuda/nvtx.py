"""NVTX ranges around what the host issues, so that a profiler names ops and copies as the trace does.

A profiler shows a range above the work that was issued within it. Where nobody asks for ranges, nothing of this runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gpumem.base.units import human
from gpumem.execute.backend import Token, Work
from gpumem.execute.layout import Block
from gpumem.trace import COPY_IN, COPY_OUT, ROLES

Submit = Callable[[Work, Sequence[Block], Sequence[Block], Sequence[Token]], Token]
COLOURS = {"compute": "green", "copy_out": "orange", "copy_in": "blue", "recompute": "purple"}


def ranged(submit: Submit) -> Submit:
    """Return `submit` of a backend with a range around each call, in the domain `gpumem`.

    The range has the op's name, its role as category, and for a copy its bytes, as text and as payload.

    Raises
    ------
    ImportError
        There is no package `nvtx`.
    """
    domain = _library().get_domain("gpumem")

    @cache  # what a range shows is made once
    def attributes(name: str, role: int, size: int) -> Any:
        label, word = f"{name} ({human(size)})" if size else name, ROLES[role]
        colour = COLOURS.get(word, "white")
        return domain.get_event_attributes(message=label, color=colour, category=word, payload=size)

    def submit_in_range(work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        size = reads[0].size if work.role in (COPY_OUT, COPY_IN) and reads else 0
        domain.push_range(attributes(work.name, work.role, size))
        try:
            return submit(work, reads, writes, after)
        finally:
            domain.pop_range()

    return submit_in_range


def _library() -> Any:
    try:
        import nvtx
    except ImportError as error:
        raise ImportError(f"ranges need the package nvtx: pip install 'gpumem[nvtx]' ({error})") from error
    return nvtx
