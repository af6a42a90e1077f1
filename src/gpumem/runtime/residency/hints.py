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
    again: Replay | None = None
    wanted: list[int] = field(default_factory=list)  # whose values that makes
    let: list[int] = field(default_factory=list)  # what is held no longer, before it
    bind: list[tuple[int, int]] = field(default_factory=list)  # after it: place among what it touches, decision
    out: list[int] = field(default_factory=list)
    keep: bool = False  # it may run again


@dataclass(slots=True)
class Hints:
    """A plan for a trace.

    `at` has what is done around an op, None for most; `keys` what an op looks like; `rows` the buffers that it touches,
    operands first; `alone` for each `Recompute` what makes its value if that is wanted on its own. `tails` are buffers
    that go to the host after their last access, by no decision; they count behind the decisions. What a plan holds
    beside its buffer is left out: reruns that would read it make it anew, in scratch. A `Recompute` for which nothing
    else can is none of `alone`: the host has its value meanwhile.
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

    def says(self, k: int, kind: type[Decision]) -> bool:
        """Whether it is a decision of a kind."""
        return k < len(self.plan.decisions) and isinstance(self.plan.decisions[k], kind)

    def outlives(self, k: int) -> bool:
        """Whether it keeps a buffer past its death."""
        return self.says(k, Hold) and not drops_tail(self.plan.decisions[k], self.trace)

    def buffer(self, k: int) -> int:
        """The buffer that a decision is about."""
        decision = self.plan.decisions[k]
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
        rows = [list(dict.fromkeys([*r, *w])) for r, w in zip(reads, writes)]
        at: list[At | None] = [None] * trace.n

        def around(op: int) -> At:
            found = at[op % trace.n]
            if found is None:
                found = at[op % trace.n] = At()
            return found

        alone = _again(trace, plan.decisions, around)
        last = trace.accesses().op.tolist()
        dropped = {(d.buffer, d.after) for d in plan.decisions if isinstance(d, Recompute)}
        holds = [d for d in plan.decisions if isinstance(d, Hold) and d.at < 0]
        later = {(d.buffer, d.after): d.until for d in holds if (d.buffer, d.after) in dropped}
        for k, d in enumerate(plan.decisions):
            if isinstance(d, Variant):
                raise ValueError(f"plan: {d}: a run has no other implementations of an op")
            if isinstance(d, Hold) and (d.at >= 0 or (d.buffer, d.after) in later):
                continue
            op = last[d.buffer][-1] if isinstance(d, Hold) else d.after
            around(op).bind.append((rows[op].index(d.buffer), k))
            if drops_tail(d, trace):
                assert isinstance(d, Hold)
                _to_host(k, op, max(d.until, op + 1), around)
            else:
                _place(k, d, around, trace.n, later.get((d.buffer, d.after), d.after + 1), again=k in alone)
        for k, buffer in enumerate(tails, len(plan.decisions)):
            op = int(trace.buffers.end[buffer] - 1) % trace.n
            around(op).bind.append((rows[op].index(buffer), k))
            _to_host(k, op, op + 1, around)
        final = _final(plan.decisions, carried.out.tolist())
        return cls(trace, plan, *keys_of(trace), rows, at, alone, final, tails)

    def wraps(self) -> list[int]:
        """The swaps whose gap goes over the boundary."""
        return [k for k, d in enumerate(self.plan.decisions) if isinstance(d, Swap) and d.before >= self.n]


def _to_host(k: int, after: int, release: int, around: Callable[[int], At]) -> None:
    """Let a tail go: to the host, in case that somebody reads it after all."""
    around(after).out.append(k)
    around(release).release.append(k)


def _place(k: int, d: Swap | Recompute | Hold, around: Callable[[int], At], n: int, drop: int, *, again: bool) -> None:
    """Put down a decision where it acts; `drop`: before which op what comes back later goes, `again` or by a copy."""
    if isinstance(d, Swap):
        around(d.out).out.append(k)
        around(d.release).release.append(k)
        around(d.prefetch).fetch.append(k)
    elif isinstance(d, Recompute):
        around(drop).release.append(k)
        if again:
            around(d.at).wanted.append(k)
        else:
            around(d.after).out.append(k)
            around(d.at).fetch.append(k)
    elif d.until < n:
        around(d.until).let.append(k)


def _again(trace: Trace, decisions: Sequence[Decision], around: Callable[[int], At]) -> dict[int, Replay]:
    """Arrange what runs again; return for each `Recompute` that can be carried out so what makes its value alone."""
    drops = {k: d for k, d in enumerate(decisions) if isinstance(d, Recompute)}
    if not drops:
        return {}
    there = [d for d in decisions if isinstance(d, Swap | Recompute) or (isinstance(d, Hold) and d.at < 0)]
    device = Device(trace, Origins.of(trace), there)
    alone = dict[int, Replay]()
    for k, d in drops.items():
        with suppress(Refused):
            alone[k] = replay(device, [d], d.at)
    found = replays(device, [drops[k] for k in alone])
    for one in found:
        around(one.place).again = one
    for one in [*found, *alone.values()]:
        for step in one.reruns:
            around(step.op).keep = True
    return alone


def _final(decisions: Sequence[Decision], out: Sequence[int]) -> list[bool]:
    """Of each swap: whether the next one of its buffer has a copy-out of its own, or there is none."""
    by_buffer: dict[int, list[tuple[int, int]]] = {}
    for k, d in enumerate(decisions):
        if isinstance(d, Swap):
            by_buffer.setdefault(d.buffer, []).append((d.after, k))
    final = [False] * len(decisions)
    for mine in map(sorted, by_buffer.values()):
        for (_, k), (_, following) in zip(mine, mine[1:] + mine[:1]):
            final[k] = out[following] >= 0
    return final


def looks(name: str, sizes: Iterable[int]) -> int:
    """What an op looks like that reads so many bytes each, as a number; of the end of a call, its name only."""
    return hash((name,)) if name == LEAVE else hash((name, *sizes))


def keys_of(trace: Trace) -> tuple[list[int], list[int]]:
    """What each op looks like before it runs, as a number; and the bytes that it makes."""
    size, start, name = trace.buffers.size.tolist(), trace.buffers.start.tolist(), trace.ops.name
    keys, fresh = [], []
    for i, (reads, writes) in enumerate(zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())):
        keys.append(looks(name[i], [size[b] for b in dict.fromkeys(reads)]))
        fresh.append(sum(size[b] for b in dict.fromkeys(writes) if start[b] % trace.n == i and b not in reads))
    return keys, fresh
