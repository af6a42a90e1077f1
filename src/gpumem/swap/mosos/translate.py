"""From a schedule to a plan: what leaves between two uses is a `Swap` or a `Recompute`, what stays longer a `Hold`.

::

    stage     u     u + 1 .. d - 1      d ..  x        .. v
    there   [use]   1  1 (copy out)     0  0  0    1  1  [use]
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
        A plain one (see `problem`). Of one that is not, what a plan cannot say is left out: an output that is there for
        a while between two uses, and gone again, is made in scratch by the reruns that want it.

    Notes
    -----
    The load of the rewritten trace is at most `schedule.memory`, and equal to it where nodes are single ops with one
    output each; so is its time, as the windows of the program leave no copy to wait for. O(n^2) for n nodes.

    Raises
    ------
    ValueError
        A value cannot be made again where the schedule runs its node: the facts that `Stages` goes by were wrong.
    """
    write = _Writer(net, schedule, net.trace.accesses().op.tolist(), _readers(net, schedule))
    moves: list[Decision] = [
        d for j, row in enumerate(net.outputs.tolist()) for b in row for d in write.decisions(j, b)
    ]
    moves += net.parked
    return Plan.of(net.trace, [*moves, *write.variants(moves)])


@dataclass(slots=True)
class _Writer:
    net: Stages
    schedule: Schedule
    touched: list[list[int]]  # the ops of each buffer
    readers: Mapping[int, Sequence[int]]  # of each output: the stages in which a rerun reads it

    def decisions(self, j: int, b: int) -> Iterator[Decision]:
        """What the schedule says of buffer `b`, an output of node j."""
        first, end = self.net.first, int(self.net.trace.buffers.end[b])
        there, n = self.schedule.there[:, j], len(self.net.nodes)
        uses = self.touched[b]
        for after, before in pairwise(uses):
            u, v = self.net.stage(after), self.net.stage(before)
            gone = [t for t in range(u + 1, v + 1) if not there[t]]
            if u >= j and gone and (found := self.leaves(j, b, after, before, gone, v)):
                yield found
        last = self.net.stage(uses[-1])
        stays = next((t for t in range(last + 1, n) if not there[t]), n)
        wanted = [t for t in self.readers.get(j, []) if last < t < stays]
        if wanted and (until := int(first[max(wanted)])) >= end:
            yield Hold(b, until)

    def leaves(self, j: int, b: int, after: int, before: int, gone: list[int], v: int) -> Decision | None:
        """How buffer `b` is away in the stages `gone` and comes back for stage v."""
        first, u = self.net.first, self.net.stage(after)
        fetched = [t for t, k in self.schedule.back if k == j and u < t <= v]
        if not fetched:
            at = max(int(first[gone[-1]]), after + 1)
            return Recompute(b, after, before, at) if at <= before else None
        begun = [t for t, k in self.schedule.out if k == j and u < t < v]
        out = max(int(first[begun[-1]]) - 1, after) if begun and begun[-1] > u + 1 else after
        prefetch = min(int(first[fetched[-1]]), before)
        release = after + 1 if gone[0] == u + 1 else int(first[gone[0]])
        release = min(max(release, out + 1), prefetch)
        return Swap(b, after, before, release, prefetch, out) if out < release else None

    def variants(self, moves: list[Decision]) -> list[Variant]:
        """The implementations that differ from what is recorded, and of reruns from the recorded run's."""
        s, trace = self.schedule, self.net.trace
        ways = {(t, j): self.net.ways[j][v] for t, j, v in zip(s.stage.tolist(), s.node.tolist(), s.by.tolist())}
        chosen = {way.op: way for (t, j), row in ways.items() if t == j for way in row}
        drops = [d for d in moves if isinstance(d, Recompute)]
        device = Device(trace, Origins.of(trace), (d for d in moves if not isinstance(d, Variant)))
        found = [way for op, way in chosen.items() if way != self.net.recorded.get(op)]
        for place in replays(device, drops) if drops else []:
            stage = self.net.stage(place.place)
            for op in sorted({rerun.op for rerun in place.reruns} & set(chosen)):
                row = ways.get((stage, self.net.stage(op)), ())
                way = next((way for way in row if way.op == op), chosen[op])
                if way != chosen[op]:
                    found.append(Variant(way.op, way.name, way.duration, way.workspace, at=place.place))
        return found


def _readers(net: Stages, schedule: Schedule) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for t, k in zip(schedule.stage.tolist(), schedule.node.tolist()):
        for j in net.nodes.deps[k].tolist() if k < t else ():
            found.setdefault(j, []).append(t)
    return found
