"""A plan: a short list of decisions in the op indices of one iteration, and what they do to a trace.

op          after          release          prefetch          before
compute  ---[ a ]-----------------------------------------------[ b ]---   consecutive accesses
d2h           [ copy out ]
h2d                                          [ copy in ]
device   =====================|              |=============================
host          |============================================|
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec

from gpumem.trace import Trace

FORMAT = "gpumem.plan/1"
Step = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


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

    Notes
    -----
    `0 <= after < n` and `after < release <= prefetch <= before <= after + n`. The copy-out is issued right
    after op `after`. `release` is the first op expected to start after the copy has ended.
    """

    buffer: Step
    after: Step
    before: Step
    release: Step
    prefetch: Step


@dataclass(frozen=True, slots=True)
class Recompute:
    """Drop `buffer` after op `after`, and run the op that made it once more right before op `at`.

    `after` and `before` are consecutive accesses as in `Swap`, `after < at <= before`. The inputs of the
    producing op must be on the device then, unchanged; it must draw no random numbers.
    """

    buffer: Step
    after: Step
    before: Step
    at: Step


@dataclass(frozen=True, slots=True)
class Variant:
    """Run op `op` by another implementation: `name`, `duration` in ns, `workspace` in bytes."""

    op: Step
    name: str
    duration: Step
    workspace: Step


Decision = Swap | Recompute | Variant
KINDS: dict[str, type[Decision]] = {"swap": Swap, "recompute": Recompute, "variant": Variant}


class _File(msgspec.Struct):
    format: str
    decisions: list[dict[str, Any]]
    trace: str = ""
    n: Step = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions for one iteration of `n` ops, in the order in which ties are broken.

    Examples
    --------
    >>> from gpumem.columns import Buffers, Ops
    >>> ops = Ops.make([[], [], [0]], [[0], [1], []])
    >>> trace = Trace(Buffers.make([8, 9], [0, 1], [3, 2]), ops)
    >>> plan = Plan((Swap(buffer=0, after=0, before=2, release=1, prefetch=2),), n=3)
    >>> swapped = plan.apply(trace)
    >>> [op.role for op in swapped.ops], trace.peak_load, swapped.peak_load
    (['compute', 'copy_out', 'compute', 'copy_in', 'compute'], 17, 9)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    decisions: tuple[Decision, ...] = ()
    n: int = 0
    trace: str = ""

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The swaps among the decisions."""
        return tuple(d for d in self.decisions if isinstance(d, Swap))

    def apply(self, trace: Trace) -> Trace:
        """Return `trace` rewritten by this plan.

        A swapped buffer becomes shorter device buffers, a host buffer for each value that it keeps there,
        and copies on the streams `d2h` and `h2d`. At one place the copies out come first, ties in plan
        order. A copy-out is left away where the host still holds the value: nothing wrote the buffer
        since an earlier copy-out. The new trace's `of` composes with the old one's.

        Raises
        ------
        ValueError
            A decision that does not fit the trace; the message names it and says why.

        Notes
        -----
        O((n + d) log (n + d) + accesses) for d decisions. A lifetime is shortened by its gaps only: dead tails stay.
        """
        from gpumem.swap.rewrite import rewrite

        if self.n and self.n != trace.n:
            raise ValueError(f"plan: made for {self.n} ops, the trace has {trace.n}")
        return rewrite(trace, self.decisions)

    def to_json(self) -> str:
        """Return the plan as JSON, one decision a line."""
        names = {kind: name for name, kind in KINDS.items()}
        rows = [json.dumps({"kind": names[type(d)], **asdict(d)}) for d in self.decisions]
        head = f'"format": "{FORMAT}", "trace": {json.dumps(self.trace)}, "n": {self.n}'
        return "{" + head + ', "decisions": [\n' + ",\n".join(rows) + "\n]}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan back.

        Raises
        ------
        ValueError
            Not JSON, not a plan, a decision of an unknown kind or with a wrong field.
        """
        try:
            file = msgspec.json.decode(text, type=_File)
        except msgspec.MsgspecError as error:
            raise ValueError(f"plan: {error}") from None
        if file.format != FORMAT:
            raise ValueError(f"plan: format {file.format!r} is unknown, expected {FORMAT!r}")
        return cls(tuple(_decision(i, row) for i, row in enumerate(file.decisions)), file.n, file.trace)


def _decision(i: int, row: dict[str, Any]) -> Decision:
    kind = row.get("kind")
    if kind not in KINDS:
        raise ValueError(f"plan: decision {i}: kind {kind!r} is unknown; there are {', '.join(KINDS)}")
    try:
        return msgspec.convert(row, KINDS[kind])
    except msgspec.ValidationError as error:
        raise ValueError(f"plan: decision {i} ({kind}): {error}") from None
