"""The event log of jobs that share a device: what an event says, and how an oracle objects to one."""

from __future__ import annotations

from typing import Protocol

RUN = {"start": "end", "recompute": "recomputed"}  # what begins a kernel, and what ends it
COPY = {"out": "out_end", "in": "in_end"}  # the same for a transfer


class Event(Protocol):
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


class LogError(ValueError):
    """An oracle found an event log wrong.

    Parameters
    ----------
    reason : str
        What is wrong, in one line.
    index : int
        The event's place in the log; its length where something is missing at the end.
    event : Event, optional

    Examples
    --------
    >>> str(LogError("job 'a' never leaves", 7))
    "event 7: job 'a' never leaves"
    """

    def __init__(self, reason: str, index: int, event: Event | None = None) -> None:
        self.reason, self.index = reason, index
        what = "" if event is None else f" ({event.ns} ns, job {event.job!r}, {event.kind})"
        super().__init__(f"event {index}{what}: {reason}")
