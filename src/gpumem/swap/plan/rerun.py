"""Recomputations and operator variants: which op made a value, and ops run by another implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpumem.columns import COMPUTE, RECOMPUTE, WORKSPACE, Bool, Buffers, Csr
from gpumem.swap.plan.decisions import Decision, Recompute, Variant
from gpumem.trace import Trace

FINE, NO_PRODUCER, OVER_BOUNDARY, IN_PLACE, RANDOM, COPY = range(6)
NEVER = (
    "",
    "no op of its lifetime makes it before op {after}",
    "op {op} made it before the iteration boundary",
    "op {op} changes it in place, so running it again would not make the same value",
    "op {op} ({name}) draws random numbers or is a copy",
    "op {op} ({name}) draws random numbers or is a copy",
)


@dataclass(frozen=True, slots=True, eq=False)
class Producers:
    """Which op made a value, and how long its inputs last; positions may lie beyond the boundary, as in `Swap`."""

    trace: Trace
    reads: list[list[int]]  # what each op reads
    written: list[list[int]]  # the ops that write each buffer, ascending
    eternal: Bool

    @classmethod
    def of(cls, trace: Trace) -> Producers:
        """Look up the writers of every buffer: O(accesses log accesses)."""
        writes = trace.ops.writes
        written = Csr.grouped(writes.idx, writes.rows(), len(trace.buffers))
        return cls(trace, trace.ops.reads.tolist(), written.tolist(), trace.eternal)

    def made_by(self, buffer: int, after: int) -> int:
        """Return the last op through `after` that writes `buffer` in that lifetime, -1 if there is none."""
        n, start = self.trace.n, int(self.trace.buffers.start[buffer])
        life = (after - start) % n
        return max(
            (i for i in self.written[buffer] if (i - start) % n <= life), key=lambda i: (i - start) % n, default=-1
        )

    def never(self, buffer: int, op: int, after: int) -> int:
        """Return why running `op` again can never give what `buffer` holds after op `after`; FINE if it can."""
        ops = self.trace.ops
        if op < 0:
            return NO_PRODUCER
        if op > after:
            return OVER_BOUNDARY
        if buffer in self.reads[op]:
            return IN_PLACE
        if ops.rng[op]:
            return RANDOM
        return FINE if ops.role[op] in (COMPUTE, RECOMPUTE) else COPY

    def written_at(self, buffer: int, made: int) -> int:
        """Return the first position from `made` on at which `buffer` is written; beyond a whole turn if none."""
        n = self.trace.n
        return made + min(((i - made) % n for i in self.written[buffer]), default=2 * n)

    def freed_at(self, buffer: int, made: int) -> int:
        """Return the position from which on `buffer`, which is alive at `made`, is gone."""
        n, b = self.trace.n, self.trace.buffers
        length = int(b.end[buffer] - b.start[buffer])
        return made + (2 * n if self.eternal[buffer] else length - (made - int(b.start[buffer])) % n)

    def until(self, op: int) -> int:
        """Return the last `at` before which `op` can run once more: its inputs are still there, unchanged."""
        lasts = [min(self.written_at(b, op), self.freed_at(b, op) - 1) for b in self.reads[op]]
        return min(lasts, default=self.trace.n)

    def check(self, d: Recompute) -> tuple[int, list[int]]:
        """Return the op that made what `d` drops, and the buffers it reads.

        Raises
        ------
        ValueError
            No op can make the value again: it changed the buffer in place, drew random numbers, ran in another
            iteration, or one of its inputs is written or gone before the recomputation.
        """
        if d.before >= self.trace.n:
            raise ValueError(f"{d}: wraps the iteration boundary, over which a recomputation does not carry a value")
        op = self.made_by(d.buffer, d.after)
        if why := self.never(d.buffer, op, d.after):
            raise ValueError(f"{d}: " + NEVER[why].format(op=op, after=d.after, name=self.trace.ops.name[op]))
        reads = list(dict.fromkeys(self.reads[op]))
        for b in reads:
            if self.written_at(b, op) < d.at:
                raise ValueError(f"{d}: op {op} made it from buffer {b}, which is written before op {d.at}")
            if self.freed_at(b, op) <= d.at:
                raise ValueError(f"{d}: op {op} made it from buffer {b}, which is freed before op {d.at}")
        return op, reads


def variants_of(trace: Trace, decisions: Sequence[Decision]) -> Trace:
    """Return `trace` with each `Variant` carried out: the op's name, duration and workspace replaced.

    An op's workspace is a buffer of kind `workspace` that only it touches; one is added where none is.
    """
    variants = [d for d in decisions if isinstance(d, Variant)]
    if not variants:
        return trace
    ops, b = trace.ops, trace.buffers
    name, duration, writes = list(ops.name), ops.duration.copy(), ops.writes.tolist()
    size = b.size.copy()
    added: list[Variant] = []
    touched = trace.accesses().op
    for d in variants:
        if not 0 <= d.op < trace.n:
            raise ValueError(f"{d}: there are {trace.n} ops")
        name[d.op], duration[d.op] = d.name, d.duration
        own = [j for j in writes[d.op] if j < len(b) and b.kind[j] == WORKSPACE and len(touched[j]) == 1]
        if own:
            size[own[0]] = d.workspace
        else:
            writes[d.op].append(len(b) + len(added))
            added.append(d)
    if len({d.op for d in variants}) < len(variants):
        raise ValueError("plan: two variants for one op")
    at = np.array([d.op for d in added], np.int64)
    none = np.full(len(added), -1, np.int64)
    buffers = Buffers.make(
        np.concatenate([size, np.array([d.workspace for d in added], np.int64)]),
        np.concatenate([b.start, at]),
        np.concatenate([b.end, at + 1]),
        persistent=np.concatenate([b.persistent, none == 0]),
        host=np.concatenate([b.host, none == 0]),
        kind=[*b.kind, *(WORKSPACE for _ in added)],
        of=np.concatenate([b.of, none]),
        name=[*b.name, *("" for _ in added)],
    )
    return Trace(buffers, replace(ops, name=tuple(name), duration=duration, writes=Csr.of(writes)), name=trace.name)
