"""From a schedule to a plan: an output off the device between two uses is swapped or recomputed, others are held.

::

    stage     u     u + 1 .. d - 1      d ..  x        .. v
    resident [use]  1  1 (copy out)     0  0  0    1  1  [use]
    plan            out = first op of   release =      prefetch or at = first op of the
                    its stage - 1       first op of d  stage in which it comes back
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpumem.base.arguments import strict
from gpumem.swap.mosos.problem import Schedule
from gpumem.swap.mosos.stages import Stages
from gpumem.swap.plan import Decision, Hold, Plan, Recompute, Swap, Variant
from gpumem.swap.plan.replay import Device, replays
from gpumem.swap.plan.values import Origins


@strict
def plan_of(net: Stages, schedule: Schedule) -> Plan:
    """Return the plan that a plain schedule stands for.

    Parameters
    ----------
    net : Stages
        The trace that the nodes of the schedule are cut from.
    schedule : Schedule
        A plain one (see `problem`). Of one that is not, what a plan cannot say is left out: an output that is on the
        device for a while between two uses is recomputed in scratch by the recomputations that read it.

    Notes
    -----
    The live bytes of the rewritten trace are at most `schedule.memory`, and equal to it where nodes are single ops with
    one output each; so is its time, as the windows of the program leave no copy to wait for. O(n^2) for n nodes.

    Raises
    ------
    ValueError
        A value cannot be recomputed where the schedule runs its node: the facts that `Stages` goes by were wrong.
    """
    write = _Writer(net, schedule, net.trace.accesses().op.tolist(), _readers(net, schedule))
    moves: list[Decision] = [
        decision
        for node, buffers in enumerate(net.outputs.tolist())
        for buffer in buffers
        for decision in write.decisions(node, buffer)
    ]
    moves += net.parked
    return Plan.of(net.trace, [*moves, *write.variants(moves)])


@dataclass(slots=True)
class _Writer:
    net: Stages
    schedule: Schedule
    touched: list[list[int]]  # the ops of each buffer
    readers: Mapping[int, Sequence[int]]  # of each output: the stages in which a recomputation reads it

    def decisions(self, node: int, buffer: int) -> Iterator[Decision]:
        """What the schedule decides about `buffer`, an output of `node`."""
        first, end = self.net.first, int(self.net.trace.buffers.end[buffer])
        resident, stages = self.schedule.resident[:, node], len(self.net.nodes)
        uses = self.touched[buffer]
        for after, before in pairwise(uses):
            stage_after, stage_before = self.net.stage(after), self.net.stage(before)
            off = [stage for stage in range(stage_after + 1, stage_before + 1) if not resident[stage]]
            if (
                stage_after >= node
                and off
                and (decision := self.absence(node, buffer, after, before, off=off, stage_before=stage_before))
            ):
                yield decision
        last = self.net.stage(uses[-1])
        stays = next((stage for stage in range(last + 1, stages) if not resident[stage]), stages)
        wanted = [stage for stage in self.readers.get(node, []) if last < stage < stays]
        if wanted and (until := int(first[max(wanted)])) >= end:
            yield Hold(buffer, until)

    def absence(
        self, node: int, buffer: int, after: int, before: int, *, off: list[int], stage_before: int
    ) -> Decision | None:
        """How `buffer` is off the device in the stages `off` and comes back for stage `stage_before`."""
        first, stage_after = self.net.first, self.net.stage(after)
        fetched = [
            stage for stage, copied in self.schedule.back if copied == node and stage_after < stage <= stage_before
        ]
        if not fetched:
            at = max(int(first[off[-1]]), after + 1)
            return Recompute(buffer, after, before, at) if at <= before else None
        begun = [stage for stage, copied in self.schedule.out if copied == node and stage_after < stage < stage_before]
        out = max(int(first[begun[-1]]) - 1, after) if begun and begun[-1] > stage_after + 1 else after
        prefetch = min(int(first[fetched[-1]]), before)
        release = after + 1 if off[0] == stage_after + 1 else int(first[off[0]])
        release = min(max(release, out + 1), prefetch)
        return Swap(buffer, after, before, release=release, prefetch=prefetch, out=out) if out < release else None

    def variants(self, moves: list[Decision]) -> list[Variant]:
        """The implementations that differ from the recorded ones, and in recomputations from those of the run."""
        schedule, trace = self.schedule, self.net.trace
        by_run = {
            (begin, node): self.net.variants[node][index]
            for begin, node, index in zip(schedule.stage.tolist(), schedule.node.tolist(), schedule.by.tolist())
        }
        chosen = {
            variant.op: variant for (begin, node), variants in by_run.items() if begin == node for variant in variants
        }
        drops = [move for move in moves if isinstance(move, Recompute)]
        device = Device(trace, Origins.of(trace), (move for move in moves if not isinstance(move, Variant)))
        differing = [variant for op, variant in chosen.items() if variant != self.net.recorded.get(op)]
        for place in replays(device, drops) if drops else []:
            stage = self.net.stage(place.place)
            for op in sorted({step.op for step in place.recomputed_ops} & set(chosen)):
                variants = by_run.get((stage, self.net.stage(op)), ())
                variant = next((variant for variant in variants if variant.op == op), chosen[op])
                if variant != chosen[op]:
                    differing.append(
                        Variant(variant.op, variant.name, variant.duration, variant.workspace, at=place.place)
                    )
        return differing


def _readers(net: Stages, schedule: Schedule) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for stage, node in zip(schedule.stage.tolist(), schedule.node.tolist()):
        for dep in net.nodes.deps[node].tolist() if node < stage else ():
            readers.setdefault(dep, []).append(stage)
    return readers
