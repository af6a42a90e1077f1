"""Data flow: each op of a rewritten trace reads exactly the values that its original reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, SYNC, Trace

# The first starts from given values, the others from what the one before left: two at least. Three is not tuned.
ITERATIONS = 3


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
            op, seen = got[of]
            for buffer, value in reads[1].items():
                if seen.get(buffer) != value:
                    reason = (
                        f"iteration {iteration}, op {op} (recorded op {of}): reads another value of buffer {buffer}"
                    )
                    raise CheckError("value", f"{reason} than its original", ops=[op], buffers=[buffer])
        _same_boundary(before, after, iteration)


def _statistics(original: Trace) -> dict[int, set[int]]:
    """The recorded buffers that each recorded op keeps statistics in; its recomputations leave them alone."""
    rows = zip(original.ops, original.statistics.tolist())
    return {op.of: {original.buffers[buffer].of for buffer in row} for op, row in rows if op.role == "compute"}


def _same_ops(original: Trace, rewritten: Trace) -> None:
    for stream in original.ops.streams:
        want = [op.of for op in original.ops if op.stream == stream and op.role == "compute"]
        got = [op.of for op in rewritten.ops if op.stream == stream and op.role == "compute"]
        if want != got:
            at = next(
                (place for place, (expected, actual) in enumerate(zip(want, got)) if expected != actual),
                min(len(want), len(got)),
            )
            what = want[at] if at < len(want) else "nothing more"
            raise CheckError("ops", f"stream {stream}: recorded op {what} expected as op number {at} of the stream")


def _born(original: Trace, rewritten: Trace) -> set[int]:
    """Buffers of the rewritten trace that hold the original buffer where it is allocated."""
    place = {op.of: op.id for op in rewritten.ops if op.role == "compute"}
    starts: dict[int, int] = {}
    for buffer in original.buffers:  # of the pieces of a buffer that was cut before, the first one counts
        if buffer.space == "device" and original.ops[buffer.start].of in place:
            starts.setdefault(buffer.of, place[original.ops[buffer.start].of])
    steps = rewritten.n
    return {
        buffer.id
        for buffer in rewritten.buffers
        if buffer.space == "device"
        and buffer.of in starts
        and (starts[buffer.of] - buffer.start) % steps < buffer.end - buffer.start
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
        steps = self.trace.n
        return [
            buffer.id
            for buffer in self.trace.buffers
            if buffer.end > steps or (buffer.persistent and buffer.end - buffer.start == steps)
        ]

    def run(self, iteration: int) -> dict[int, tuple[int, dict[int, int]]]:
        """Interpret one iteration; return what each computing op reads: recorded op -> (op, buffer -> value)."""
        buffers, ops, steps = self.trace.buffers, self.trace.ops, self.trace.n
        if iteration == 0:
            self.value = {buffer: self.symbol("init", int(buffers.of[buffer])) for buffer in self.crossing()}
        starting: dict[int, list[int]] = {}
        for new in buffers:
            if not (new.persistent and new.end - new.start == steps):
                starting.setdefault(new.start, []).append(new.id)
        seen = {}
        for op in work.all_of(ops):
            for buffer in starting.get(op.id, []):
                own = self.born is None or buffer in self.born
                self.value[buffer] = (
                    self.symbol("undefined", int(buffers.of[buffer]))
                    if own
                    else self.symbol("garbage", buffer, iteration)
                )
            role = ops.role[op.id]
            if role == SYNC:
                continue
            if role in (COPY_OUT, COPY_IN):
                self.value[op.writes[0]] = self.value[op.reads[0]]
                continue
            reads, in_statistics = self._by_original(op.id, op.reads), self.statistics.get(op.of, set())
            luck = iteration if ops.rng[op.id] else -1
            full = (op.of, luck, tuple(sorted(reads.items())))
            plain = (
                op.of,
                luck,
                tuple(sorted((of, symbol) for of, symbol in reads.items() if of not in in_statistics)),
            )
            for buffer in op.writes:
                of = int(buffers.of[buffer])
                self.value[buffer] = self.symbol(full if of in in_statistics else plain, of)
            if role != RECOMPUTE:
                seen[op.of] = (op.id, reads)
        return seen

    def _by_original(self, op: int, buffers: tuple[int, ...]) -> dict[int, int]:
        reads: dict[int, int] = {}
        for buffer in buffers:
            of = int(self.trace.buffers.of[buffer])
            if reads.setdefault(of, self.value[buffer]) != self.value[buffer]:
                reason = f"op {op}: reads two different values of recorded buffer {of}"
                raise CheckError("value", reason, ops=[op], buffers=[of])
        return reads


def _same_boundary(before: _State, after: _State, iteration: int) -> None:
    """Who crosses the boundary in the rewritten trace holds the original's value, and someone does."""
    buffers = after.trace.buffers
    held: dict[int, list[int]] = {}
    for before_id in after.crossing():
        held.setdefault(int(buffers.of[before_id]), []).append(before_id)
    for before_id in before.crossing():
        of = int(before.trace.buffers.of[before_id])
        if of not in held and before.trace.buffers.persistent[before_id]:
            reason = f"iteration {iteration}: nobody carries buffer {of} over the boundary"
            raise CheckError("lost value", reason, buffers=[of])
        for after_id in held.get(of, []):
            if after.value[after_id] != before.value[before_id]:
                reason = (
                    f"iteration {iteration}: buffer {after_id} crosses the boundary with another value than buffer {of}"
                )
                raise CheckError("lost value", reason, buffers=[after_id, of])
