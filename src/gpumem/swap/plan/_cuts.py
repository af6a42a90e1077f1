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
    """A gap over which a buffer leaves the device, as decided; `Issued` and `Pieces` say where it ends up."""

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
    chosen = [(rank, d) for rank, d in enumerate(decisions) if isinstance(d, Swap | Recompute)]
    candidates = gaps(trace)
    candidates = candidates.where(np.isin(candidates.buffer, [d.buffer for _, d in chosen]))
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
    swapped = np.array(sorted(gap for gap, (_, d) in taken.items() if isinstance(d, Swap)), np.int64)
    copies_out = dict(zip(swapped.tolist(), needs_copy_out(candidates.where(swapped)).tolist()))
    cuts: dict[int, list[Cut]] = {}
    for gap, (rank, decision) in sorted(taken.items()):
        held_until = holds.later.get((decision.buffer, decision.after), -1)
        cut = Cut(decision, rank, copies_out.get(gap, False), held_until)
        cuts.setdefault(decision.buffer, []).append(cut)
    return cuts


def _check(d: Swap | Recompute, trace: Trace) -> None:
    _on_device(d, trace)
    if isinstance(d, Swap):
        names, steps = "after <= out < release <= prefetch <= before", [d.after, d.out, d.release - 1, d.prefetch - 1]
    else:
        names, steps = "after < at <= before", [d.after, d.at - 1]
    steps.append(d.before - 1)
    if not (0 <= d.after < trace.n and steps == sorted(steps) and d.before <= d.after + trace.n):
        rule = f"must obey 0 <= after < {trace.n} and {names} <= after + {trace.n}"
        raise ValueError(f"{d}: {rule}{_broken(d, names.split())}")
    if isinstance(d, Recompute) and d.before >= trace.n:
        raise ValueError(f"{d}: wraps the iteration boundary, over which a recomputation does not carry a value")


def _on_device(d: Swap | Recompute | Hold, trace: Trace) -> None:
    if not 0 <= d.buffer < len(trace.buffers):
        raise ValueError(f"{d}: there are {len(trace.buffers)} buffers")
    if trace.buffers.host[d.buffer]:
        raise ValueError(f"{d}: the buffer is on the host already")


def _broken(d: Swap | Recompute, names: list[str]) -> str:
    """Which two of the steps are not in order, where it is two."""
    for left, sign, right in zip(names[::2], names[1::2], names[2::2]):
        a, b = getattr(d, left), getattr(d, right)
        if a > b or (a == b and sign == "<"):
            return f"; {left} {a} {sign} {right} {b} does not hold"
    return ""


@dataclass(frozen=True, slots=True)
class Holds:
    """What stays for reruns, or not as long as it could."""

    until: dict[int, int] = field(default_factory=dict)  # buffer: before which op its lifetime ends
    later: dict[tuple[int, int], int] = field(default_factory=dict)  # buffer, access: before which op it is dropped
    made: list[Hold] = field(default_factory=list)  # beside their buffers


def find_holds(trace: Trace, decisions: Sequence[Decision]) -> Holds:
    """Sort what is held by how; every decision is checked here."""
    found, touched = Holds(), trace.accesses().op
    dropped = {(d.buffer, d.after): d for d in decisions if isinstance(d, Recompute)}
    for d in decisions:
        if not isinstance(d, Hold):
            continue
        _on_device(d, trace)
        mine = touched[d.buffer].tolist()
        if (d.after >= 0 or d.at >= 0) and d.after not in mine:
            raise ValueError(f"{d}: after must be an op that accesses the buffer, one of {reprlib.repr(mine)}")
        if d.at >= 0:
            _check_piece(d, found.made, trace.n)
            found.made.append(d)
        elif (d.buffer, d.after) in dropped:
            _check_later(d, dropped[d.buffer, d.after], found)
            found.later[d.buffer, d.after] = d.until
        else:
            _check_end(d, mine, found, trace)
            found.until[d.buffer] = d.until
    return found


def _check_piece(d: Hold, others: Iterable[Hold], n: int) -> None:
    """What is made again and stays."""
    if not d.after < d.at < d.until <= n:
        raise ValueError(f"{d}: must obey after < at < until <= {n}")
    for other in others:
        if other.buffer == d.buffer and other.at < d.until and d.at < other.until:
            raise ValueError(f"{d}: the buffer is held already by {other}")


def _check_later(d: Hold, drop: Recompute, found: Holds) -> None:
    """What is dropped later than right after its access."""
    if (d.buffer, d.after) in found.later:
        raise ValueError(f"{d}: it is already held until op {found.later[d.buffer, d.after]}")
    if not d.after < d.until < drop.at:
        raise ValueError(f"{d}: must obey after < until < {drop.at}, where {drop} brings it back")


def _check_end(d: Hold, accesses: Sequence[int], found: Holds, trace: Trace) -> None:
    """What ends later than its lifetime, or earlier."""
    b = trace.buffers
    start, end, last = int(b.start[d.buffer]), int(b.end[d.buffer]), max(accesses, default=-1)
    if d.buffer in found.until:
        raise ValueError(f"{d}: it is already held until op {found.until[d.buffer]}")
    if end > trace.n or trace.eternal[d.buffer]:
        raise ValueError(f"{d}: its lifetime [{start}, {end}) leaves nothing to hold in an iteration of {trace.n} ops")
    if d.after not in (-1, last):
        raise ValueError(f"{d}: nothing drops it after op {d.after}; its last access is at op {last}")
    least = end if b.persistent[d.buffer] or not accesses else last
    if not least <= d.until <= trace.n:
        rule = f"must obey {'end' if least == end else least} <= until <= {trace.n}"
        raise ValueError(f"{d}: {rule}, and its lifetime is [{start}, {end})")


def find_replays(trace: Trace, decisions: Sequence[Decision]) -> list[Replay]:
    """Return what runs again, by place.

    Raises
    ------
    ValueError
        A value that cannot be made again; the message names the decision, and the buffer and op that are the obstacle.
    """
    wanted = [d for d in decisions if isinstance(d, Recompute) or (isinstance(d, Hold) and d.at >= 0)]
    if not wanted:
        return []
    device = Device(trace, Origins.of(trace), (d for d in decisions if isinstance(d, Swap | Recompute | Hold)))
    try:
        return replays(device, wanted)
    except Refused:
        for d in sorted(wanted, key=lambda d: d.at):  # which of them it is
            try:
                replays(device, [d])
            except Refused as why:
                raise ValueError(f"{d}: cannot be made again before op {d.at}: {why}") from None
        raise
