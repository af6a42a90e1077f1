"""One copy of a job, from when the walk issues it to when it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpumem.jobs.runtime.memory import Request


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy between device part `part` and the host, of `size` bytes; `into` the device or out of it.

    It is ready when `blockers` is 0: its time has come, its memory is granted, the copies that it depends on have
    ended. `undue`: its time has not come yet. `awaited`: the executor stands still until it has ended, which it has at
    ns `end` (-1: not yet).
    """

    iteration: int
    op: int  # in the rewritten trace; -1 for a copy that a change of plan takes
    into: bool
    part: int
    buffer: int
    size: int
    due: int
    needs: list[Transfer]
    request: Request | None = None  # of the part's bytes
    blockers: int = 0
    undue: bool = False
    dependents: list[Transfer] = field(default_factory=list)
    awaited: bool = False
    end: int = -1
