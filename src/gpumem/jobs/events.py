"""What happened, event by event: the log that every other result is counted from."""

from __future__ import annotations

from dataclasses import dataclass, field

# At one instant what ends comes first, then what is decided, freed, held and started.
_ORDER = (
    ("end", "recomputed", "out_end", "in_end"),
    ("arrive", "wait", "refused", "replan", "launch", "adopt"),
    ("free",),
    ("hold",),
    ("passive",),
    ("start", "recompute", "out", "in"),
    ("iteration", "leave"),
)
_RANK = {kind: rank for rank, kinds in enumerate(_ORDER) for kind in kinds}


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one job.

    Parameters
    ----------
    ns : int
    job : str
    kind : str
        `arrive`, `wait` (for admission), `refused` (`size`: the bytes that its plan got down to, alone), `launch`,
        `adopt` (a new plan; `size` of both: the job's budget from now on), `iteration` (has ended), `leave`;
        `replan` (of all jobs, because of this one; `size`: the sum of their budgets by the new plans);
        `hold`, `free` (`size` device bytes of `part`); `start`, `end` (of op `op`), `recompute`, `recomputed` (`op`
        once more); `out`, `out_end`, `in`, `in_end` (a copy of `size` bytes from or to device part `part`);
        `passive` (a copy-in that an op needs before its time, or that a change of plan takes).
    iteration : int
        Of this job; of a copy, the one that issued it. Between two iterations the coming one; -1 while it waits.
    op, buffer : int
        In the job's own trace; -1 where there is none.
    size : int
        Bytes.
    part : int
        The buffer's id in the trace rewritten by the plan in force.
    """

    ns: int
    job: str
    kind: str
    iteration: int = -1
    op: int = -1
    buffer: int = -1
    size: int = 0
    part: int = -1


@dataclass(slots=True, eq=False)
class Log:
    """Events in the order of time; those of one round of an instant in that order of kinds."""

    events: list[Event] = field(default_factory=list)
    round: list[Event] = field(default_factory=list)

    def flush(self) -> None:
        """End a round."""
        self.round.sort(key=lambda event: _RANK[event.kind])
        self.events += self.round
        self.round = []
