"""The log of what ran when under a pipeline of node groups, filled by the simulated clock and by threads alike.

Slots are counted through all rounds and all pipelines of a run, so whoever reads the log needs no clock to order it.
`gpumem.check.waterwave` judges it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpumem.base.display import Facts, Shown
from gpumem.jobs.waterwave.pipeline import Pipeline


class OpRun(NamedTuple):
    """One op of a node group, `op` in the job's own trace, and from when to when it ran, in ns."""

    op: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GroupRun:
    """One node group of one iteration of a job.

    Parameters
    ----------
    job : str
    iteration, group : int
        Of this job, from 0 on; and which of its node groups.
    stream, slot : int
        Where it ran.
    start, end : int
        ns: of its kernels by the simulated clock; of the call that enqueues it on threads.
    ops : tuple of OpRun
        In the order in which they ran; on threads none, as only the call is seen.
    """

    job: str
    iteration: int
    group: int
    stream: int
    slot: int
    start: int
    end: int
    ops: tuple[OpRun, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineStart:
    """From `slot` on the `jobs` run by this pipeline, whose part `j` is that of `jobs[j]`."""

    slot: int
    jobs: tuple[str, ...]
    pipeline: Pipeline


@dataclass(slots=True, eq=False, repr=False)
class SlotLog(Shown):
    """What ran when; `groups` in no particular order, `pipelines` in that of their slots.

    >>> SlotLog()
    SlotLog(0 node groups, 0 ops, 0 pipelines)
    """

    groups: list[GroupRun] = field(default_factory=list)
    pipelines: list[PipelineStart] = field(default_factory=list)

    def _facts(self) -> Facts:
        ops = sum(len(run.ops) for run in self.groups)
        return {"node groups": len(self.groups), "ops": ops, "pipelines": len(self.pipelines)}
