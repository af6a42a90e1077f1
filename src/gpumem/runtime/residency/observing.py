"""The observer forgets, and never raises: what is only written down of a program must not end it.

A program within a run is somebody's training. Where a recorder, a detector, a planner or a predictor meets what it does
not know, the run says so in its notes and goes on without. In our own tests such an error is raised (`STRICT`), as it
is a defect of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
STRICT = False  # our tests set it


class Refusal(ValueError):
    """What a run cannot do, in a sentence for whoever wrote the program: no defect of ours."""


def tolerable(error: Exception) -> bool:
    """Whether an observer's error is to be forgotten: always, but where our own tests look for defects."""
    return isinstance(error, Refusal) or not STRICT


def forgets(method: F) -> F:
    """Let a hook of ours return None where it fails, and not the program that called it; refusals are raised."""

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Refusal:
            raise
        except Exception as error:
            if not tolerable(error):
                raise
            return None

    return called  # type: ignore[return-value]
