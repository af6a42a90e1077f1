"""The decisions that a plan is made of, in the op indices of one iteration.

Time goes to the right::

    op          after   out       release          prefetch          before
    compute  ---[ a ]---[ ]--------------------------------------------[ b ]---   consecutive accesses
    d2h                   [ copy out ]
    h2d                                             [ copy in ]
    device   ==========================|            |=============================
    host                  |===============================================|
"""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base.arguments import strict_fields
from gpumem.swap.plan.gaps import Spans
from gpumem.trace import I64, int_column


@strict_fields
@dataclass(frozen=True, slots=True)
class Swap:
    """Keep `buffer` on the host between two consecutive accesses.

    Parameters
    ----------
    buffer : int
    after, before : int
        The ops of the two accesses; the gap wraps iff `before >= n`, and `before = after + n` where the
        iteration has one access only.
    release : int
        The device buffer is held through op `release - 1`, at least through the copy-out.
    prefetch : int
        The copy-in is issued right before this op.
    out : int
        The copy-out is issued right after this op; `after` where left out. Later, it lets a more urgent one pass.

    Notes
    -----
    `0 <= after < n` and `after <= out < release <= prefetch <= before <= after + n`. `release` is the first op
    expected to start after the copy-out has ended.
    """

    buffer: int
    after: int
    before: int
    release: int
    prefetch: int
    out: int = -1

    def __post_init__(self) -> None:
        if self.out == -1:
            object.__setattr__(self, "out", self.after)

    @classmethod
    def each(cls, chosen: Spans, release: I64, prefetch: I64, out: I64 | None = None) -> list[Swap]:
        """Return a swap for each of the chosen gaps; `release`, `prefetch`, `out`: int64[m], `out` as in `Swap`.

        >>> from gpumem.trace import Buffers, Ops
        >>> from gpumem.swap.plan.gaps import gaps
        >>> from gpumem.trace import Trace
        >>> found = gaps(Trace(Buffers.make([8], [0], [3]), Ops.make([[], [], [0]], [[0], [], []])))
        >>> Swap.each(found, found.after + 1, found.before)
        [Swap(buffer=0, after=0, before=2, release=1, prefetch=2, out=0)]
        """
        given = {"release": release, "prefetch": prefetch, "out": chosen.after if out is None else out}
        columns = {name: int_column(column, name) for name, column in given.items()}
        for name, column in columns.items():
            if len(column) != len(chosen.buffer):
                raise ValueError(f"{name}: {len(column)} of them for {len(chosen.buffer)} gaps")
        rows = (chosen.buffer, chosen.after, chosen.before, *columns.values())
        return [cls(*row) for row in zip(*(column.tolist() for column in rows))]

    def within(self, n: int) -> Swap:
        """Return the swap, which counts on over iterations, as one of an iteration of `n` ops."""
        turn = self.after // n * n
        steps = (self.after, self.before, self.release, self.prefetch, self.out)
        return Swap(self.buffer, *(step - turn for step in steps))


@strict_fields
@dataclass(frozen=True, slots=True)
class Recompute:
    """Drop `buffer` after op `after`, and recompute its value right before op `at`.

    `after` and `before` are consecutive accesses as in `Swap`, `after < at <= before < n`. What is recomputed is the
    last whole write of the buffer through op `after` and each change in place after it; what these read and is not on
    the device unchanged is recomputed in scratch. The recomputations of all decisions with the same `at` are united.
    """

    buffer: int
    after: int
    before: int
    at: int


@strict_fields
@dataclass(frozen=True, slots=True)
class Hold:
    """Keep what `buffer` holds after op `after` on the device until op `until` begins, for recomputations to read.

    Parameters
    ----------
    buffer : int
    until : int
        Recomputations right before this op can still read it.
    after : int
        An op that accesses the buffer; the last one where left out, and `at` as well.
    at : int
        The value is recomputed right before this op, beside what the buffer holds then. Left out, it is there still.

    Notes
    -----
    With `at`: `after < at < until <= n`; the pieces of a buffer follow one another. Without::

        after the last access, end <= until <= n       the buffer outlives its lifetime, which ends at `end`
        after the last access, at it <= until < end    its tail is dropped: nobody reads it any more
        after another one, until < at of its Recompute it is dropped later than right after the access

    One that crosses the boundary has neither a death nor a tail here, and what is persistent no tail.
    """

    buffer: int
    until: int
    after: int = -1
    at: int = -1


@strict_fields
@dataclass(frozen=True, slots=True)
class Variant:
    """Run op `op` by another implementation: `name`, `duration` in ns, `workspace` in bytes.

    `at`: only its recomputation right before op `at`. Left out, the recorded run, and all recomputations that have none
    of their own.
    """

    op: int
    name: str
    duration: int
    workspace: int
    at: int = -1


Decision = Swap | Recompute | Hold | Variant
KINDS: dict[str, type[Decision]] = {"swap": Swap, "recompute": Recompute, "hold": Hold, "variant": Variant}
