"""Where a plan cuts buffers, what it holds and runs again, and where in issue order all of that goes."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpumem.swap.plan.decisions import Decision, Hold, Recompute, Swap
from gpumem.swap.plan.gaps import gaps, needs_copy_out
from gpumem.swap.plan.replay import Device, Refused, Replay, replays
from gpumem.swap.plan.values import Origins
from gpumem.trace import COPY_IN, COPY_OUT, I64, RECOMPUTE, Trace


@dataclass(slots=True)
class Cut:
    """A gap that leaves the device without the buffer; new indices and ids are filled in on the way."""

    decision: Swap | Recompute
    dirty: bool  # the host does not hold this value yet: there is a copy-out
    until: int = -1  # the op before which it is released, if it stays for reruns
    out: int = -1  # new index of the copy-out, if there is one
    back: int = field(init=False)  # new index of the copy-in, or of the first rerun that writes it
    ready: int = field(init=False)  # new index of the copy-in, or of the last rerun that writes it
    source: int = field(init=False)  # new ids of the pieces before and behind it
    target: int = field(init=False)
    host: int = field(init=False)  # and of the host buffer, if it is swapped

    @property
    def release(self) -> int:
        """The first op after the gap began that need not hold the device buffer."""
        d = self.decision
        return d.release if isinstance(d, Swap) else d.after + 1


def find_cuts(trace: Trace, decisions: Sequence[Decision], holds: Holds) -> dict[int, list[Cut]]:
    """Return the cuts of each buffer in the order of its lifetime; every decision is checked here."""
    chosen = [d for d in decisions if isinstance(d, Swap | Recompute)]
    mine = gaps(trace)
    mine = mine.where(np.isin(mine.buffer, [d.buffer for d in chosen]))
    row = mine.rows(trace.n)
    by_row: dict[int, Swap | Recompute] = {}
    for d in chosen:
        _check(d, trace)
        k = row.get((d.buffer, d.after))
        if k is None or mine.before[k] != d.before:
            instead = "" if k is None else f"; the next access is at {mine.before[k]}"
            raise ValueError(f"{d}: ops {d.after} and {d.before} are not consecutive accesses of it{instead}")
        if k in by_row:
            raise ValueError(f"{d}: this gap is already taken by {by_row[k]}")
        by_row[k] = d
    swapped = np.array(sorted(k for k, d in by_row.items() if isinstance(d, Swap)), np.int64)
    dirty = dict(zip(swapped.tolist(), needs_copy_out(mine.where(swapped)).tolist()))
    cuts: dict[int, list[Cut]] = {}
    for k in sorted(by_row):
        d = by_row[k]
        cuts.setdefault(d.buffer, []).append(Cut(d, dirty.get(k, False), holds.later.get((d.buffer, d.after), -1)))
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


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a cut: out of the device, or into it."""

    cut: Cut
    role: int


def issue_order(
    n: int, cuts: Sequence[Cut], replays: Sequence[Replay], order: Mapping[Decision, int]
) -> tuple[I64, list[Copy | Replay], list[int], int]:
    """Place what is inserted: at one place copies out, copies in, both in plan order, and its reruns.

    Returns
    -------
    pos : int64[n]
        New index of each old op.
    inserted : list
        Copies and replays, in issue order.
    at : list of int
        The new index of each; of a replay that of its first rerun.
    total : int
        New ops.
    """
    items: list[tuple[tuple[int, ...], int, Copy | Replay]] = []  # (place, role, rank), ops, what
    for cut in cuts:
        d = cut.decision
        if isinstance(d, Swap):
            items.append(((d.prefetch % n, COPY_IN, order[d]), 1, Copy(cut, COPY_IN)))
            if cut.dirty:
                items.append(((d.out % n + 1, COPY_OUT, order[d]), 1, Copy(cut, COPY_OUT)))
    items += [((r.place, RECOMPUTE), len(r.reruns), r) for r in replays]
    items.sort(key=lambda item: item[0])
    ops_before = np.array([key[0] for key, *_ in items], np.int64)
    count = np.array([ops for _, ops, _ in items], np.int64)
    inserted = np.concatenate([[0], np.cumsum(count)])  # by the first k items
    steps = np.arange(n, dtype=np.int64)
    pos = steps + inserted[np.searchsorted(ops_before, steps, side="right")]
    at = (ops_before + inserted[:-1]).tolist()
    return pos, [what for *_, what in items], at, n + int(inserted[-1])
