"""Data flow: each op of a rewritten trace reads exactly the values that its original reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, SYNC, Trace

ITERATIONS = 3  # the first starts from given values, the others from what the one before left


@strict
def data_flow(original: Trace, rewritten: Trace) -> None:
    """Check that in the steady state every op reads the values it read before the rewrite.

    Parameters
    ----------
    original, rewritten : Trace
        `of` of buffers and ops tells which is made of which.

    Raises
    ------
    CheckError
        An op is missing, doubled or out of order; an op reads another value than its original; a buffer
        that crosses the boundary does not hold the original's value there.

    Notes
    -----
    Both traces are interpreted for three iterations with symbols for values: an op's result is the tuple
    of the op and all it read, a copy's is what it copied. A random op's result names the iteration as well, and is
    the same each time that the op runs in it. An op has two results: its statistics depend on all that it reads,
    its other outputs on all but the statistics.
    """
    _same_ops(original, rewritten)
    symbols: dict[Hashable, int] = {}
    kept = _statistics(original)
    before, after = _State(original, symbols, kept), _State(rewritten, symbols, kept)
    after.born = _born(original, rewritten)
    for iteration in range(ITERATIONS):
        want, got = before.run(iteration), after.run(iteration)
        for of, reads in want.items():
            i, seen = got[of]
            for buffer, value in reads[1].items():
                if seen.get(buffer) != value:
                    told = f"iteration {iteration}, op {i} (recorded op {of}): reads another value of buffer {buffer}"
                    raise CheckError("value", f"{told} than its original", ops=[i], buffers=[buffer])
        _same_boundary(before, after, iteration)


def _statistics(original: Trace) -> dict[int, set[int]]:
    """The recorded buffers that each recorded op keeps statistics in; its reruns leave them alone."""
    rows = zip(original.ops, original.statistics.tolist())
    return {o.of: {original.buffers[j].of for j in row} for o, row in rows if o.role == "compute"}


def _same_ops(original: Trace, rewritten: Trace) -> None:
    for stream in original.ops.streams:
        want = [o.of for o in original.ops if o.stream == stream and o.role == "compute"]
        got = [o.of for o in rewritten.ops if o.stream == stream and o.role == "compute"]
        if want != got:
            at = next((k for k, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
            what = want[at] if at < len(want) else "nothing more"
            raise CheckError("ops", f"stream {stream}: recorded op {what} expected as op number {at} of the stream")


def _born(original: Trace, rewritten: Trace) -> set[int]:
    """Buffers of the rewritten trace that hold the original buffer where it is allocated."""
    place = {o.of: o.id for o in rewritten.ops if o.role == "compute"}
    starts: dict[int, int] = {}
    for b in original.buffers:  # of the pieces of a buffer that was cut before, the first one counts
        if b.space == "device" and original.ops[b.start].of in place:
            starts.setdefault(b.of, place[original.ops[b.start].of])
    n = rewritten.n
    return {
        b.id
        for b in rewritten.buffers
        if b.space == "device" and b.of in starts and (starts[b.of] - b.start) % n < b.end - b.start
    }


@dataclass(slots=True)
class _State:
    """One trace being interpreted: what each buffer holds."""

    trace: Trace
    symbols: dict[Hashable, int]
    statistics: dict[int, set[int]]  # recorded op -> recorded buffers
    born: set[int] | None = None  # buffers that start undefined as the original does; None: all
    value: dict[int, int] = field(default_factory=dict)

    def symbol(self, *expression: Hashable) -> int:
        """Equal expressions are the same symbol, in both traces."""
        return self.symbols.setdefault(expression, len(self.symbols))

    def crossing(self) -> list[int]:
        """Buffers that carry a value over the boundary."""
        n = self.trace.n
        return [b.id for b in self.trace.buffers if b.end > n or (b.persistent and b.end - b.start == n)]

    def run(self, iteration: int) -> dict[int, tuple[int, dict[int, int]]]:
        """Interpret one iteration; return what each computing op reads: recorded op -> (op, buffer -> value)."""
        b, ops, n = self.trace.buffers, self.trace.ops, self.trace.n
        if iteration == 0:
            self.value = {j: self.symbol("init", int(b.of[j])) for j in self.crossing()}
        starting: dict[int, list[int]] = {}
        for x in b:
            if not (x.persistent and x.end - x.start == n):
                starting.setdefault(x.start, []).append(x.id)
        seen = {}
        for op in work.all_of(ops):
            for j in starting.get(op.id, []):
                own = self.born is None or j in self.born
                self.value[j] = self.symbol("undefined", int(b.of[j])) if own else self.symbol("garbage", j, iteration)
            role = ops.role[op.id]
            if role == SYNC:
                continue
            if role in (COPY_OUT, COPY_IN):
                self.value[op.writes[0]] = self.value[op.reads[0]]
                continue
            reads, kept = self._by_original(op.id, op.reads), self.statistics.get(op.of, set())
            luck = iteration if ops.rng[op.id] else -1
            full = (op.of, luck, tuple(sorted(reads.items())))
            plain = (op.of, luck, tuple(sorted((of, v) for of, v in reads.items() if of not in kept)))
            for j in op.writes:
                of = int(b.of[j])
                self.value[j] = self.symbol(full if of in kept else plain, of)
            if role != RECOMPUTE:
                seen[op.of] = (op.id, reads)
        return seen

    def _by_original(self, i: int, buffers: tuple[int, ...]) -> dict[int, int]:
        reads: dict[int, int] = {}
        for j in buffers:
            of = int(self.trace.buffers.of[j])
            if reads.setdefault(of, self.value[j]) != self.value[j]:
                told = f"op {i}: reads two different values of recorded buffer {of}"
                raise CheckError("value", told, ops=[i], buffers=[of])
        return reads


def _same_boundary(before: _State, after: _State, iteration: int) -> None:
    """Who crosses the boundary in the rewritten trace holds the original's value, and someone does."""
    b = after.trace.buffers
    held: dict[int, list[int]] = {}
    for j in after.crossing():
        held.setdefault(int(b.of[j]), []).append(j)
    for j in before.crossing():
        of = int(before.trace.buffers.of[j])
        if of not in held and before.trace.buffers.persistent[j]:
            told = f"iteration {iteration}: nobody carries buffer {of} over the boundary"
            raise CheckError("lost value", told, buffers=[of])
        for k in held.get(of, []):
            if after.value[k] != before.value[j]:
                told = f"iteration {iteration}: buffer {k} crosses the boundary with another value than buffer {of}"
                raise CheckError("lost value", told, buffers=[k, of])
