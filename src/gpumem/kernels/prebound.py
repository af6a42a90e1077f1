"""Launches made once and replayed: a launcher is given a `Script` for a stream, and notes what it would launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Start = Callable[[Any], None]  # starts something on the stream that it is given
F = TypeVar("F", bound=Callable[..., Any])


class Script(list[Start]):
    """What a launcher is given for a stream: it takes the launches down."""


def in_turn(starts: Sequence[Start]) -> Start:
    """Return what starts one after another on a stream.

    >>> started = []
    >>> in_turn([started.append, started.append])("a stream")
    >>> started
    ['a stream', 'a stream']
    """
    if len(starts) == 1:
        return starts[0]
    every = tuple(starts)

    def start(stream: Any) -> None:
        for each in every:
            each(stream)

    return start


def prebinding(function: F) -> F:
    """Say of `function(stream, *arguments, **options)` that it does nothing with the stream but `launch` on it.

    Then `prebound` calls it once, with a script in the place of the stream. The launches must depend on the arguments
    alone, not on what an array holds.
    """
    vars(function)["prebinds"] = True
    return function


def prebound(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Start:
    """Return what starts `function(stream, *arguments, **options)` on a stream.

    Of the ops in `gpumem.kernels.device`, and of functions marked by `prebinding`, the kernels, the launch
    configurations and the flattened arguments are made here, once: arguments are checked, kernels are compiled and
    loaded, and a start costs the host a microsecond. Any other function is called at each start.

    Parameters
    ----------
    function : callable
    *arguments, **options
        All but the stream. Arrays must stay where they are for as long as starts are to come: a start does not keep
        those on a device alive.

    Returns
    -------
    callable
        `start(stream)`.

    Raises
    ------
    ValueError
        What a function of `device` says of its arguments.

    Examples
    --------
    >>> import numpy as np
    >>> from gpumem.kernels import prebound, reference
    >>> x = np.array([1.0, 2.0], np.float32)
    >>> start = prebound(reference.add, x, x, x)
    >>> start(None)
    >>> start(None)
    >>> x.tolist()
    [4.0, 8.0]
    """
    if not getattr(function, "prebinds", False):
        return lambda stream: function(stream, *arguments, **options)
    script = Script()
    function(script, *arguments, **options)
    return in_turn(script)
