"""The log of jobs that run by node groups in slots: what it says, and how an oracle objects to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpumem.base.errors import CheckError


class LoggedOp(Protocol):
    """One op of a node group."""

    @property
    def op(self) -> int:
        """Which one, in the job's own trace."""

    @property
    def start(self) -> int:
        """Nanoseconds."""

    @property
    def end(self) -> int:
        """Nanoseconds."""


class LoggedGroup(Protocol):
    """One node group of one iteration of a job; its `ops` in order, none where only the group was seen."""

    @property
    def job(self) -> str:
        """The job's name."""

    @property
    def iteration(self) -> int:
        """The iteration of this job, from 0 on."""

    @property
    def group(self) -> int:
        """Which of its node groups."""

    @property
    def stream(self) -> int:
        """Where it runs."""

    @property
    def slot(self) -> int:
        """The slot in which it runs, counted through all rounds and pipelines."""

    @property
    def start(self) -> int:
        """Nanoseconds."""

    @property
    def end(self) -> int:
        """Nanoseconds."""

    @property
    def ops(self) -> Sequence[LoggedOp]:
        """What runs in it."""


class LoggedTurn(Protocol):
    """One iteration of a job in a pipeline; slots count from the round in which it begins."""

    @property
    def job(self) -> int:
        """Which of the pipeline's jobs."""

    @property
    def slot(self) -> Sequence[int]:
        """Of each node group."""

    @property
    def stream(self) -> Sequence[int]:
        """Of each node group."""


class LoggedSchedule(Protocol):
    """A pipeline: what runs in the `period` slots of each of its rounds."""

    @property
    def turns(self) -> Sequence[LoggedTurn]:
        """The iterations that begin in a round."""

    @property
    def period(self) -> int:
        """Slots of a round."""


class LoggedPipeline(Protocol):
    """From `slot` on these `jobs` run by a pipeline."""

    @property
    def slot(self) -> int:
        """Its first one."""

    @property
    def jobs(self) -> Sequence[str]:
        """Their names."""

    @property
    def pipeline(self) -> LoggedSchedule:
        """What they run by."""


class LoggedSlots(Protocol):
    """A run: its node groups in any order, its pipelines in that of their slots."""

    @property
    def groups(self) -> Sequence[LoggedGroup]:
        """What ran."""

    @property
    def pipelines(self) -> Sequence[LoggedPipeline]:
        """By what."""


def objection(rule: str, run: LoggedGroup, reason: str, *ops: int) -> CheckError:
    """Return what an oracle finds wrong with a node group as a `CheckError` that says which one it is.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> run = SimpleNamespace(job="a", iteration=1, group=2, slot=9, stream=0)
    >>> str(objection("slot", run, "on both streams"))
    "job 'a', iteration 1, node group 2 (slot 9, stream 0): on both streams"
    """
    place = f"job {run.job!r}, iteration {run.iteration}, node group {run.group} (slot {run.slot}, stream {run.stream})"
    return CheckError(rule, f"{place}: {reason}", ops=ops)
