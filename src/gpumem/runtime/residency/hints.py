"""A plan as a run carries it out: by the op around which something is done.

What a decision is about is found by the place at which its op `after` touches it: an operand or a result, counted over
the storages that the op touches, each once. Hints only: what they name may be dead, or elsewhere, by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpumem.swap.plan import Decision, Hold, Plan, Recompute, Swap, Variant
from gpumem.swap.plan.replay import Device, Refused, Replay, replay, replays
from gpumem.swap.plan.tails import drops_tail
from gpumem.swap.plan.values import Origins
from gpumem.trace import Trace

LEAVE = "leave"  # the op that the end of a call is: it reads all that lasts


@dataclass(slots=True)
class At:
    """What is done around one op; decisions by their place in the plan."""

    release: list[int] = field(default_factory=list)  # before it
    fetch: list[int] = field(default_factory=list)
    replay: Replay | None = None
    wanted: list[int] = field(default_factory=list)  # whose values that makes
    let: list[int] = field(default_factory=list)  # what is held no longer, before it
    bind: list[tuple[int, int]] = field(default_factory=list)  # after it: place among what it touches, decision
    out: list[int] = field(default_factory=list)
    keep: bool = False  # it may be recomputed


@dataclass(slots=True)
class Hints:
    """A plan for a trace.

    `at` has what is done around an op, None for most; `keys` what an op looks like; `rows` the buffers that it touches,
    operands first; `alone` for each `Recompute` what makes its value if that is wanted on its own. `tails` are buffers
    that go to the host after their last access, by no decision; they count behind the decisions. What a plan holds
    beside its buffer is left out: recomputations that would read it make it anew, in scratch. A `Recompute` for which
    nothing else can is none of `alone`: the host has its value meanwhile.
    """

    trace: Trace
    plan: Plan
    keys: list[int]
    fresh: list[int]  # bytes that each op makes
    rows: list[list[int]]
    at: list[At | None]
    alone: dict[int, Replay]
    final: list[bool]  # of each swap: nothing needs the host's copy after it came back
    tails: Sequence[int] = ()

    @property
    def count(self) -> int:
        """Decisions and tails."""
        return len(self.plan.decisions) + len(self.tails)

    def says(self, index: int, kind: type[Decision]) -> bool:
        """Whether it is a decision of a kind."""
        return index < len(self.plan.decisions) and isinstance(self.plan.decisions[index], kind)

    def outlives(self, index: int) -> bool:
        """Whether it keeps a buffer past its death."""
        return self.says(index, Hold) and not drops_tail(self.plan.decisions[index], self.trace)

    def buffer(self, index: int) -> int:
        """The buffer that a decision is about."""
        decision = self.plan.decisions[index]
        assert not isinstance(decision, Variant)
        return decision.buffer

    @property
    def n(self) -> int:
        """Ops of the iteration."""
        return len(self.keys)

    @classmethod
    def of(cls, trace: Trace, plan: Plan, tails: Sequence[int] = ()) -> Hints:
        """Arrange a plan for a trace that it fits, and buffers that are on the host from their last access on.

        Raises
        ------
        ValueError
            The plan does not fit the trace, or has a `Variant`, which PyTorch knows nothing of.
        """
        carried = plan.carried(trace)  # refuses what does not fit
        reads, writes = trace.ops.reads.tolist(), trace.ops.writes.tolist()
        rows = [list(dict.fromkeys([*read, *written])) for read, written in zip(reads, writes)]
        at: list[At | None] = [None] * trace.n

        def around(op: int) -> At:
            moves = at[op % trace.n]
            if moves is None:
                moves = at[op % trace.n] = At()
            return moves

        alone = _replays(trace, plan.decisions, around)
        last = trace.accesses().op.tolist()
        dropped = {(decision.buffer, decision.after) for decision in plan.decisions if isinstance(decision, Recompute)}
        holds = [decision for decision in plan.decisions if isinstance(decision, Hold) and decision.at < 0]
        later = {
            (decision.buffer, decision.after): decision.until
            for decision in holds
            if (decision.buffer, decision.after) in dropped
        }
        for index, decision in enumerate(plan.decisions):
            if isinstance(decision, Variant):
                raise ValueError(f"plan: {decision}: a run has no other implementations of an op")
            if isinstance(decision, Hold) and (decision.at >= 0 or (decision.buffer, decision.after) in later):
                continue
            op = last[decision.buffer][-1] if isinstance(decision, Hold) else decision.after
            around(op).bind.append((rows[op].index(decision.buffer), index))
            if drops_tail(decision, trace):
                assert isinstance(decision, Hold)
                _to_host(index, op, max(decision.until, op + 1), around)
            else:
                _place(
                    index,
                    decision,
                    around,
                    trace.n,
                    later.get((decision.buffer, decision.after), decision.after + 1),
                    recomputes=index in alone,
                )
        for index, buffer in enumerate(tails, len(plan.decisions)):
            op = int(trace.buffers.end[buffer] - 1) % trace.n
            around(op).bind.append((rows[op].index(buffer), index))
            _to_host(index, op, op + 1, around)
        final = _final(plan.decisions, carried.out.tolist())
        return cls(trace, plan, *keys_of(trace), rows, at, alone, final, tails)

    def wraps(self) -> list[int]:
        """The swaps whose gap goes over the boundary."""
        return [
            index
            for index, decision in enumerate(self.plan.decisions)
            if isinstance(decision, Swap) and decision.before >= self.n
        ]


def _to_host(index: int, after: int, release: int, around: Callable[[int], At]) -> None:
    """Let a tail go: to the host, in case that somebody reads it after all."""
    around(after).out.append(index)
    around(release).release.append(index)


def _place(
    index: int, decision: Swap | Recompute | Hold, around: Callable[[int], At], n: int, drop: int, *, recomputes: bool
) -> None:
    """Put down a decision where it acts; `drop`: before which op the value goes; `recomputes`: not by a copy."""
    if isinstance(decision, Swap):
        around(decision.out).out.append(index)
        around(decision.release).release.append(index)
        around(decision.prefetch).fetch.append(index)
    elif isinstance(decision, Recompute):
        around(drop).release.append(index)
        if recomputes:
            around(decision.at).wanted.append(index)
        else:
            around(decision.after).out.append(index)
            around(decision.at).fetch.append(index)
    elif decision.until < n:
        around(decision.until).let.append(index)


def _replays(trace: Trace, decisions: Sequence[Decision], around: Callable[[int], At]) -> dict[int, Replay]:
    """Arrange what is recomputed; return for each `Recompute` that can be carried out so what makes its value alone."""
    drops = {index: decision for index, decision in enumerate(decisions) if isinstance(decision, Recompute)}
    if not drops:
        return {}
    there = [
        decision
        for decision in decisions
        if isinstance(decision, Swap | Recompute) or (isinstance(decision, Hold) and decision.at < 0)
    ]
    device = Device(trace, Origins.of(trace), there)
    alone = dict[int, Replay]()
    for index, decision in drops.items():
        with suppress(Refused):
            alone[index] = replay(device, [decision], decision.at)
    made = replays(device, [drops[index] for index in alone])
    for one in made:
        around(one.place).replay = one
    for one in [*made, *alone.values()]:
        for step in one.recomputed_ops:
            around(step.op).keep = True
    return alone


def _final(decisions: Sequence[Decision], out: Sequence[int]) -> list[bool]:
    """Of each swap: whether the next one of its buffer has a copy-out of its own, or there is none."""
    by_buffer: dict[int, list[tuple[int, int]]] = {}
    for index, decision in enumerate(decisions):
        if isinstance(decision, Swap):
            by_buffer.setdefault(decision.buffer, []).append((decision.after, index))
    final = [False] * len(decisions)
    for gaps in map(sorted, by_buffer.values()):
        for (_, index), (_, following) in zip(gaps, gaps[1:] + gaps[:1]):
            final[index] = out[following] >= 0
    return final


def looks(name: str, sizes: Iterable[int]) -> int:
    """What an op looks like that reads so many bytes each, as a number; of the end of a call, its name only."""
    return hash((name,)) if name == LEAVE else hash((name, *sizes))


def keys_of(trace: Trace) -> tuple[list[int], list[int]]:
    """What each op looks like before it runs, as a number; and the bytes that it makes."""
    size, start, name = trace.buffers.size.tolist(), trace.buffers.start.tolist(), trace.ops.name
    keys, fresh = [], []
    for op, (reads, writes) in enumerate(zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())):
        keys.append(looks(name[op], [size[buffer] for buffer in dict.fromkeys(reads)]))
        fresh.append(
            sum(
                size[buffer]
                for buffer in dict.fromkeys(writes)
                if start[buffer] % trace.n == op and buffer not in reads
            )
        )
    return keys, fresh
