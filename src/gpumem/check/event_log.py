"""The event log of jobs that share a device: what an event says, and how an oracle objects to one."""

from __future__ import annotations

from typing import Protocol

from gpumem.base.errors import CheckError

RUN = {"start": "end", "recompute": "recomputed"}  # what begins a kernel, and what ends it
COPY = {"out": "out_end", "in": "in_end"}  # the same for a transfer


class LoggedEvent(Protocol):
    """One line of the log; what does not apply is -1 or 0.

    `op` and `buffer` count in the job's own trace, `part` in the rewritten trace of the plan in force.
    """

    @property
    def ns(self) -> int:
        """When it happens."""

    @property
    def job(self) -> str:
        """The job's name."""

    @property
    def kind(self) -> str:
        """What happens."""

    @property
    def iteration(self) -> int:
        """The iteration it belongs to."""

    @property
    def op(self) -> int:
        """The op that runs."""

    @property
    def buffer(self) -> int:
        """The buffer held, freed or moved."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def part(self) -> int:
        """The piece of the buffer."""


def objection(rule: str, reason: str, index: int, event: LoggedEvent | None = None) -> CheckError:
    """Return what an oracle finds wrong as a `CheckError` that says where in the log it is.

    Parameters
    ----------
    index : int
        The event's place in the log; its length where something is missing at the end.

    Examples
    --------
    >>> str(objection("life", "job 'a' never leaves", 7))
    "event 7: job 'a' never leaves"
    """
    if event is None:
        return CheckError(rule, f"event {index}: {reason}", event=index)
    place = f"event {index} ({event.ns} ns, job {event.job!r}, {event.kind})"
    ops, buffers = ([key] if key >= 0 else [] for key in (event.op, event.buffer))
    return CheckError(rule, f"{place}: {reason}", ops=ops, buffers=buffers, event=index)
