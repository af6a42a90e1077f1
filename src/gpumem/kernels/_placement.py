"""What `placement` says of a placement, as numbers, and the checks that both libraries make before."""

from __future__ import annotations

from typing import Any

from gpumem.kernels import _shapes

FINE, ON_HOST, MISPLACED, TOO_HIGH, OVERLAP = range(5)  # found[0] of `placement`


def buffers(steps: int, offset: Any, **columns: Any) -> int:
    """Check that there is a step and that all columns are flat and of one length; return that."""
    if steps < 1:
        raise ValueError(f"steps is {steps}, expected at least 1")
    _shapes.axes("offset", offset, "B")
    return _shapes.same(offset=offset, **columns)


def overlap(offset: Any, size: Any, start: Any, end: Any, steps: int, pair: Any) -> int:
    """Return the number of buffers."""
    _shapes.expect("pair", pair, (2,))
    return buffers(steps, offset, size=size, start=start, end=end)


def load_profile(size: Any, start: Any, end: Any, out: Any) -> tuple[int, int]:
    """Return the number of buffers and of steps, at least one."""
    (steps,) = _shapes.axes("out", out, "n")
    _shapes.axes("size", size, "B")
    if steps < 1:
        raise ValueError(f"out has the shape ({steps},), expected at least one step")
    return _shapes.same(size=size, start=start, end=end), steps


def placement(
    offset: Any, size: Any, start: Any, end: Any, host: Any, steps: int, alignment: int, height: int, found: Any
) -> int:
    """Return the number of buffers."""
    for name, value, least in (("alignment", alignment, 1), ("height", height, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}")
    _shapes.expect("found", found, (3,))
    return buffers(steps, offset, size=size, start=start, end=end, host=host)
