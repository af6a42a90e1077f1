"""The generic op: mixes the bytes it reads into what it writes, so that any plan for any trace can run.

A wrong byte anywhere changes what every later op makes of it. An op computes a checksum of the values it
reads, with a weight for each position, and fills each buffer it writes with bytes drawn from that::

    digest = sum over the buffers read of (byte + 1) * hash(position, buffer)
    out[i] = top byte of hash(digest, buffer written, i)

A read of a buffer that nothing has written since its allocation has no value: it is left out. A random op's digest
has its draw counter in it, which a recomputation does not advance. Statistics of an op are left out of the digest of
its other outputs, and a recomputation that does not touch statistics leaves them out of everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import at_least, strict
from gpumem.base.jit import jit
from gpumem.execute.backend import Bytes, Call
from gpumem.execute.views import Views
from gpumem.kernels import in_turn, prebound
from gpumem.kernels.hash import FIRST, GOLDEN, ONE, S32, S56, mix
from gpumem.trace import COMPUTE, I64, RECOMPUTE, ROLES, UNKNOWN, Csr, Op, Trace
from gpumem.trace.placement import Placement

U64 = NDArray[np.uint64]

_mix = jit(mix)


class GenericOp:
    """A launch that runs every op of a trace, and of its rewritten forms, as the generic op.

    Parameters
    ----------
    trace : Trace
        The trace before the plan: it says which reads have a value.
    library : module, optional
        With `advance`, `clear`, `checksum` and `fill` as in `gpumem.kernels`; by default compiled loops on the host
        with a cheaper hash.

    Attributes
    ----------
    seen : uint64[n]
        For each op of `trace` a digest of all that it has read so far, iteration by iteration. Two runs in
        which every op read the same bytes agree here. The host's own library only.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.execute import Emulator, GenericOp, initial, run
    >>> trace = Trace(Buffers.make([8], [0], [1], persistent=[True]), Ops.make([[0]], [[0]]))
    >>> state = initial(trace, seed=0)
    >>> before = state[0].copy()
    >>> _ = run(trace, Placement.at(trace, [0]), Emulator(), GenericOp(trace), state=state)
    >>> (state[0] == before).all()
    np.False_
    """

    @strict
    def __init__(self, trace: Trace, library: Any = None) -> None:
        self.library = library
        recorded = np.flatnonzero((trace.ops.role == COMPUTE) & (trace.ops.of != UNKNOWN))  # not recomputations
        self.place = dict(zip(trace.ops.of[recorded].tolist(), recorded.tolist()))
        self.values = _values(trace)
        kept = trace.statistics
        self.statistics = [set(trace.buffers.of[kept[buffer]].tolist()) for buffer in range(trace.n)]
        self.random = trace.ops.rng.tolist()
        self.seen: U64 = np.zeros(trace.n, np.uint64)

    def __call__(self, op: Op, views: Views) -> Call | None:
        """Bind one op."""
        if op.of not in self.place:
            raise ValueError(f"op {op.id} ({op.name}): recorded op {op.of} is not in the trace that this launch is for")
        place = self.place[op.of]
        is_recomputed, kept = op.role == ROLES[RECOMPUTE], self.statistics[place]
        written = [of for of in dict.fromkeys(views.written) if of != UNKNOWN]
        sources = [of for of in self.values[place] if of not in kept or of in written]
        rounds = [
            _Round(*([(views.bytes(of), of) for of in some if (of in kept) == late] for some in (sources, written)))
            for late in (False, True)  # statistics take in all that is read
        ]
        counter = views.generator() if self.random[place] else None
        if self.library is not None:
            scratch = views.scratch(np.uint64, (1,)), views.scratch(np.uint8, (8,))
            return _by_library(self.library, rounds, counter, *scratch, is_recomputed=is_recomputed)
        return self._native(rounds, counter, UNKNOWN if is_recomputed else place)

    def _native(self, rounds: list[_Round], counter: U64 | None, note: int) -> Call:
        digest: U64 = np.zeros(1, np.uint64)
        seen = self.seen

        def call(stream: object) -> None:
            with np.errstate(over="ignore"):  # without the compiler, scalars warn when they wrap
                digest[0] = 0
                if counter is not None:
                    counter[0] += np.uint64(note != UNKNOWN)
                    digest[0] = _mix(counter[0])
                for reads, writes in rounds:
                    for source, salt in reads:
                        _checksum(source, digest, salt)
                    for out, salt in writes:
                        _fill(digest, out, salt)
                if note != UNKNOWN:
                    _note(seen, note, digest)

        return call


class _Round(NamedTuple):
    """What goes into the digest, and what is filled from it then: arrays, and the recorded ids of their buffers."""

    reads: list[tuple[Any, int]]
    writes: list[tuple[Any, int]]


def _by_library(
    library: Any, rounds: list[_Round], counter: Any, digest: Any, drawn: Any, *, is_recomputed: bool
) -> Call:
    starts = [prebound(library.clear, digest)]
    if counter is not None:
        if not is_recomputed:
            starts.append(prebound(library.advance, counter))
        starts += prebound(library.fill, counter, drawn, 0), prebound(library.checksum, drawn, digest, 0)
    for reads, writes in rounds:
        starts += [prebound(library.checksum, source, digest, salt) for source, salt in reads]
        starts += [prebound(library.fill, digest, out, salt) for out, salt in writes]
    return in_turn(starts)


def _values(trace: Trace) -> list[list[int]]:
    """The recorded buffers that each op reads a value of: written before in this lifetime, or eternal."""
    buffers, count, first = trace.buffers, trace.n, _first_write(trace)
    op, buffer = trace.ops.reads.rows(), trace.ops.reads.idx
    known = ((op - buffers.start[buffer]) % count > first[buffer]) & (buffers.of[buffer] != UNKNOWN)
    rows = Csr.grouped(op[known], buffers.of[buffer[known]], count).tolist()
    return [list(dict.fromkeys(row)) for row in rows]


def _first_write(trace: Trace) -> I64:
    """Steps from each buffer's allocation to the first write: -1 if it always has a value, n if it never gets one."""
    buffers, count = trace.buffers, trace.n
    first = np.full(len(buffers), count, np.int64)
    op, buffer = trace.ops.writes.rows(), trace.ops.writes.idx
    np.minimum.at(first, buffer, (op - buffers.start[buffer]) % count)
    first[trace.eternal] = -1
    return first


@strict
def carried(trace: Trace) -> set[int]:
    """Return the recorded ids of the buffers that hold a value at the boundary: what two runs may be compared by.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([1, 1], [1, 1], [3, 3]), Ops.make([[], []], [[], [1]]))
    >>> carried(trace)  # both cross it, but nothing writes the first
    {1}
    """
    buffers, count = trace.buffers, trace.n
    return set(buffers.of[trace.crossing & (_first_write(trace) < count - buffers.start)].tolist())


@jit
def _checksum(data: Bytes, digest: U64, salt: int) -> None:
    state = _mix(np.uint64(salt))
    total = np.uint64(0)
    for index in range(len(data)):
        state += GOLDEN
        total += (np.uint64(data[index]) + ONE) * (state ^ (state >> S32))
    digest[0] += total


@jit
def _fill(digest: U64, out: Bytes, salt: int) -> None:
    state = _mix(digest[0] ^ _mix(np.uint64(salt)))
    for index in range(len(out)):
        state += GOLDEN
        out[index] = ((state ^ (state >> S32)) * FIRST) >> S56


@jit
def _note(seen: U64, index: int, digest: U64) -> None:
    seen[index] = _mix(seen[index] + GOLDEN) + digest[0]


@strict
def initial(trace: Trace, seed: int = 0) -> dict[int, NDArray[Any]]:
    """Return random bytes for every buffer whose value crosses the boundary, by recorded id.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([3, 4], [0, 0], [1, 1], persistent=[True, False]), Ops.make([[0]], [[1]]))
    >>> initial(trace, seed=1)
    {0: array([255, 228,  34], dtype=uint8)}
    """
    buffers, rng = trace.buffers, np.random.default_rng(seed)
    over = np.flatnonzero(trace.crossing).tolist()
    return {int(buffers.of[index]): rng.integers(0, 256, int(buffers.size[index]), np.uint8) for index in over}


@strict
def in_units(trace: Trace, unit: int) -> Trace:
    """Shrink a trace: one byte for each `unit` bytes, rounded up, so that it runs fast.

    >>> from gpumem.trace import Buffers, Ops
    >>> in_units(Trace(Buffers.make([300, 256], [0, 0], [1, 1]), Ops.make([[]], [[0, 1]])), 256).buffers.size
    array([2, 1])
    """
    at_least(1, unit=unit)
    buffers = replace(trace.buffers, size=-(-trace.buffers.size // unit), shape=None, dtype=None)
    return Trace(buffers, trace.ops, name=trace.name)


@strict
def scaled(trace: Trace, placement: Placement) -> tuple[Trace, Placement]:
    """Shrink a placed trace by its alignment: one byte for each unit, so that it runs fast.

    Who overlaps whom stays exactly the same.

    >>> from gpumem.trace import Buffers, Ops
    >>> trace = Trace(Buffers.make([300, 256], [0, 0], [1, 1]), Ops.make([[]], [[0, 1]]))
    >>> small, placed = scaled(trace, Placement.at(trace, [256, 0], alignment=256))
    >>> small.buffers.size.tolist(), placed.offset.tolist(), placed.height
    ([2, 1], [1, 0], 3)
    """
    placement.check_fits(trace)
    unit = placement.alignment
    offset = np.where(trace.buffers.host, placement.offset, placement.offset // unit)
    return in_units(trace, unit), Placement(offset, -(-placement.height // unit), 1)
