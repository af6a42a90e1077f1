"""What a plan decides, checked: where it cuts buffers, what it holds, what it recomputes and where."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpumem.swap.plan.decisions import Decision, Hold, Recompute, Swap
from gpumem.swap.plan.gaps import gaps, needs_copy_out
from gpumem.swap.plan.replay import Device, Refused, Replay, replays
from gpumem.swap.plan.values import Origins
from gpumem.trace import Trace


class Cut(NamedTuple):
    """A gap over which a buffer leaves the device, as decided; `Issued` and `CutBuffers` say where it ends up."""

    decision: Swap | Recompute
    rank: int  # its place in the plan, which breaks ties
    copies_out: bool  # the host does not hold this value yet
    held_until: int = -1  # the op before which it is released, where a `Hold` keeps it for recomputations

    @property
    def release(self) -> int:
        """The first op after the gap began that need not hold the device buffer."""
        return self.decision.release if isinstance(self.decision, Swap) else self.decision.after + 1


def find_cuts(trace: Trace, decisions: Sequence[Decision], holds: Holds) -> dict[int, list[Cut]]:
    """Return the cuts of each buffer in the order of its lifetime; every decision is checked here."""
    chosen = [(rank, decision) for rank, decision in enumerate(decisions) if isinstance(decision, Swap | Recompute)]
    candidates = gaps(trace)
    candidates = candidates.where(np.isin(candidates.buffer, [decision.buffer for _, decision in chosen]))
    gap_of = candidates.rows(trace.n)
    taken: dict[int, tuple[int, Swap | Recompute]] = {}
    for rank, decision in chosen:
        _check(decision, trace)
        gap = gap_of.get((decision.buffer, decision.after))
        if gap is None or candidates.before[gap] != decision.before:
            hint = "" if gap is None else f"; the next access is at {candidates.before[gap]}"
            pair = f"ops {decision.after} and {decision.before}"
            raise ValueError(f"{decision}: {pair} are not consecutive accesses of it{hint}")
        if gap in taken:
            raise ValueError(f"{decision}: this gap is already taken by {taken[gap][1]}")
        taken[gap] = rank, decision
    swapped = np.array(sorted(gap for gap, (_, decision) in taken.items() if isinstance(decision, Swap)), np.int64)
    copies_out = dict(zip(swapped.tolist(), needs_copy_out(candidates.where(swapped)).tolist()))
    cuts: dict[int, list[Cut]] = {}
    for gap, (rank, decision) in sorted(taken.items()):
        held_until = holds.later.get((decision.buffer, decision.after), -1)
        cut = Cut(decision, rank, copies_out.get(gap, False), held_until)
        cuts.setdefault(decision.buffer, []).append(cut)
    return cuts


def _check(decision: Swap | Recompute, trace: Trace) -> None:
    _on_device(decision, trace)
    if isinstance(decision, Swap):
        names, steps = (
            "after <= out < release <= prefetch <= before",
            [decision.after, decision.out, decision.release - 1, decision.prefetch - 1],
        )
    else:
        names, steps = "after < at <= before", [decision.after, decision.at - 1]
    steps.append(decision.before - 1)
    if not (0 <= decision.after < trace.n and steps == sorted(steps) and decision.before <= decision.after + trace.n):
        rule = f"must obey 0 <= after < {trace.n} and {names} <= after + {trace.n}"
        raise ValueError(f"{decision}: {rule}{_broken(decision, names.split())}")
    if isinstance(decision, Recompute) and decision.before >= trace.n:
        raise ValueError(f"{decision}: wraps the iteration boundary, over which a recomputation does not carry a value")


def _on_device(decision: Swap | Recompute | Hold, trace: Trace) -> None:
    if not 0 <= decision.buffer < len(trace.buffers):
        raise ValueError(f"{decision}: there are {len(trace.buffers)} buffers")
    if trace.buffers.host[decision.buffer]:
        raise ValueError(f"{decision}: the buffer is on the host already")


def _broken(decision: Swap | Recompute, names: list[str]) -> str:
    """Which two of the steps are not in order, where it is two."""
    for left, sign, right in zip(names[::2], names[1::2], names[2::2]):
        before, after = getattr(decision, left), getattr(decision, right)
        if before > after or (before == after and sign == "<"):
            return f"; {left} {before} {sign} {right} {after} does not hold"
    return ""


@dataclass(frozen=True, slots=True)
class Holds:
    """What stays for recomputations, or not as long as it could."""

    until: dict[int, int] = field(default_factory=dict)  # buffer: before which op its lifetime ends
    later: dict[tuple[int, int], int] = field(default_factory=dict)  # buffer, access: before which op it is dropped
    made: list[Hold] = field(default_factory=list)  # beside their buffers


def find_holds(trace: Trace, decisions: Sequence[Decision]) -> Holds:
    """Sort what is held by how; every decision is checked here."""
    holds, touched_by = Holds(), trace.accesses().op
    dropped = {(decision.buffer, decision.after): decision for decision in decisions if isinstance(decision, Recompute)}
    for decision in decisions:
        if not isinstance(decision, Hold):
            continue
        _on_device(decision, trace)
        accesses = touched_by[decision.buffer].tolist()
        if (decision.after >= 0 or decision.at >= 0) and decision.after not in accesses:
            raise ValueError(
                f"{decision}: after must be an op that accesses the buffer, one of {reprlib.repr(accesses)}"
            )
        if decision.at >= 0:
            _check_piece(decision, holds.made, trace.n)
            holds.made.append(decision)
        elif (decision.buffer, decision.after) in dropped:
            _check_later(decision, dropped[decision.buffer, decision.after], holds)
            holds.later[decision.buffer, decision.after] = decision.until
        else:
            _check_end(decision, accesses, holds, trace)
            holds.until[decision.buffer] = decision.until
    return holds


def _check_piece(hold: Hold, others: Iterable[Hold], n: int) -> None:
    """What is recomputed and stays."""
    if not hold.after < hold.at < hold.until <= n:
        raise ValueError(f"{hold}: must obey after < at < until <= {n}")
    for other in others:
        if other.buffer == hold.buffer and other.at < hold.until and hold.at < other.until:
            raise ValueError(f"{hold}: the buffer is held already by {other}")


def _check_later(hold: Hold, drop: Recompute, holds: Holds) -> None:
    """What is dropped later than right after its access."""
    if (hold.buffer, hold.after) in holds.later:
        raise ValueError(f"{hold}: it is already held until op {holds.later[hold.buffer, hold.after]}")
    if not hold.after < hold.until < drop.at:
        raise ValueError(f"{hold}: must obey after < until < {drop.at}, where {drop} brings it back")


def _check_end(hold: Hold, accesses: Sequence[int], holds: Holds, trace: Trace) -> None:
    """What ends later than its lifetime, or earlier."""
    table = trace.buffers
    start, end, last = int(table.start[hold.buffer]), int(table.end[hold.buffer]), max(accesses, default=-1)
    if hold.buffer in holds.until:
        raise ValueError(f"{hold}: it is already held until op {holds.until[hold.buffer]}")
    if end > trace.n or trace.eternal[hold.buffer]:
        raise ValueError(
            f"{hold}: its lifetime [{start}, {end}) leaves nothing to hold in an iteration of {trace.n} ops"
        )
    if hold.after not in (-1, last):
        raise ValueError(f"{hold}: nothing drops it after op {hold.after}; its last access is at op {last}")
    least = end if table.persistent[hold.buffer] or not accesses else last
    if not least <= hold.until <= trace.n:
        rule = f"must obey {'end' if least == end else least} <= until <= {trace.n}"
        raise ValueError(f"{hold}: {rule}, and its lifetime is [{start}, {end})")


def find_replays(trace: Trace, decisions: Sequence[Decision]) -> list[Replay]:
    """Return what is recomputed, by place.

    Raises
    ------
    ValueError
        A value that cannot be recomputed; the message names the decision, and the buffer and op that are the obstacle.
    """
    wanted = [
        decision
        for decision in decisions
        if isinstance(decision, Recompute) or (isinstance(decision, Hold) and decision.at >= 0)
    ]
    if not wanted:
        return []
    device = Device(
        trace, Origins.of(trace), (decision for decision in decisions if isinstance(decision, Swap | Recompute | Hold))
    )
    try:
        return replays(device, wanted)
    except Refused:
        for decision in sorted(wanted, key=lambda decision: decision.at):  # which of them it is
            try:
                replays(device, [decision])
            except Refused as why:
                raise ValueError(f"{decision}: cannot be recomputed before op {decision.at}: {why}") from None
        raise
