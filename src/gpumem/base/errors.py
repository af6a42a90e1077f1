"""What can go wrong on purpose: planners that cannot or did not reach a limit, oracles that object.

Bad input is a plain `ValueError` that names the value and the place.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.base.units import exact, human


class CheckError(Exception):
    """An oracle found a result wrong. It is a verdict, no bad input: an `except ValueError` on the way lets it pass.

    Parameters
    ----------
    rule : str
        Which rule is broken: a key of `gpumem.check.RULES`.
    reason : str
        What is wrong and where, in one line.
    ops, buffers : sequence of int
        Those concerned, where the oracle knows them.
    event : int
        In a log of jobs the place of the event, or the log's length where something is missing at the end; else -1.

    Examples
    --------
    >>> wrong = CheckError("overlap", "buffers 3 and 7: overlap in time and address", buffers=(3, 7))
    >>> wrong.rule, wrong.buffers, str(wrong)
    ('overlap', (3, 7), 'buffers 3 and 7: overlap in time and address')
    """

    def __init__(
        self, rule: str, reason: str, *, ops: Sequence[int] = (), buffers: Sequence[int] = (), event: int = -1
    ) -> None:
        self.rule, self.reason, self.event = rule, reason, event
        self.ops, self.buffers = tuple(ops), tuple(buffers)
        super().__init__(reason)


def _amount(limit: int, other: int) -> str:
    """A limit for people, to the byte where it looks like what is above it."""
    return exact(limit) if human(limit) == human(other) else human(limit)


class Infeasible(Exception):
    """No plan of this kind can exist; the attributes are the certificate.

    Parameters
    ----------
    op : int
        The op (its index in the iteration) that needs the most.
    needs : int
        Bytes it must hold whatever is swapped: the least limit that would do.
    limit : int
        Bytes that were asked for.

    Examples
    --------
    >>> str(Infeasible(op=4, needs=900, limit=500))
    'infeasible: op 4 must hold 900 B, the limit is 500 B; the least limit that could do is 900 bytes'
    """

    def __init__(self, op: int, needs: int, limit: int) -> None:
        self.op, self.needs, self.limit = op, needs, limit
        super().__init__(
            f"infeasible: op {op} must hold {human(needs)}, the limit is {_amount(limit, needs)}; "
            f"the least limit that could do is {exact(needs)}"
        )


class NotReached(Exception):
    """A planner gave up above the limit, without a proof that none could do better.

    Parameters
    ----------
    reached : int
        The lowest bytes that it got to.
    limit : int
        Bytes that were asked for.
    what : str
        What `reached` counts.
    hint : str
        What may get lower.

    Examples
    --------
    >>> str(NotReached(reached=900, limit=500))
    'not reached: the limit is 500 B, the planner got down to a peak of 900 bytes'
    """

    def __init__(self, reached: int, limit: int, what: str = "a peak", hint: str = "") -> None:
        self.reached, self.limit, self.hint = reached, limit, hint
        text = (
            f"not reached: the limit is {_amount(limit, reached)}, the planner got down to {what} of {exact(reached)}"
        )
        super().__init__(f"{text}; {hint}" if hint else text)


def failure(error: BaseException) -> str:
    """Return in one line what went wrong where nothing should have: its type, and what it says.

    >>> failure(ZeroDivisionError("division by zero")), failure(MemoryError())
    ('ZeroDivisionError: division by zero', 'MemoryError')
    """
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())


IN_PLANNER = "in planner "  # how the note on an error begins that a planner of the user's own has raised


def own_planner(error: BaseException) -> str:
    """Return in which planner of the user's own an error was raised; nothing where it is an error of ours."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(IN_PLANNER)), "")


class ExecutionError(RuntimeError):
    """An op failed while a program ran.

    Parameters
    ----------
    op : int
        Its index in the iteration.
    name : str
    reason : str

    Examples
    --------
    >>> str(ExecutionError(3, "conv2d", "could not be started: out of memory"))
    'op 3 (conv2d): could not be started: out of memory'
    """

    def __init__(self, op: int, name: str, reason: str) -> None:
        self.op, self.name, self.reason = op, name, reason
        super().__init__(f"op {op} ({name}): {reason}")
