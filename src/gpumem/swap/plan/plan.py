"""A plan: a short, serialisable list of decisions for one iteration, and what they do to a trace."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown, frame
from gpumem.base.names import one_of
from gpumem.swap.plan.decisions import KINDS, Decision, Hold, Recompute, Swap, Variant
from gpumem.swap.plan.rewrite import Carried, rewrite
from gpumem.trace import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Decision", "Hold", "Plan", "Recompute", "Swap", "Variant"]

_UNITS = {"duration": "duration_ns", "workspace": "workspace_bytes"}  # of columns that are no ops
FORMAT = "gpumem.plan/1"


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Shown):
    """Decisions for one iteration of `n` ops, in the order in which ties are broken.

    `blocking`: the host waits for each copy of the plan before it hands over the next op, as a system does that has no
    copies beside kernels (see `gpumem.simulator.simulate`).

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [], [0]], [[0], [1], []])
    >>> trace = Trace(Buffers.make([8, 9], [0, 1], [3, 2]), ops)
    >>> plan = Plan((Swap(buffer=0, after=0, before=2, release=1, prefetch=2),), n=3)
    >>> swapped = plan.apply(trace)
    >>> [op.role for op in swapped.ops], trace.peak_live_bytes, swapped.peak_live_bytes
    (['compute', 'copy_out', 'compute', 'copy_in', 'compute'], 17, 9)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    decisions: tuple[Decision, ...] = ()
    n: int = 0
    trace: str = ""
    blocking: bool = False

    @classmethod
    @strict
    def of(cls, trace: Trace, decisions: Iterable[Decision] = (), *, blocking: bool = False) -> Plan:
        """Make a plan for `trace`: the empty one, unless there are decisions."""
        return cls(tuple(decisions), trace.n, trace.name, blocking)

    def _facts(self) -> Facts:
        count = {name: sum(isinstance(d, kind) for d in self.decisions) for name, kind in KINDS.items()}
        more: dict[str, object] = {"recomputations": count["recompute"]}
        more |= {f"{name}s": count[name] for name in ("hold", "variant") if count[name]}
        more |= {"copies": "blocking"} if self.blocking else {}
        return {"": self.trace, "swaps": count["swap"], **more, "for": f"{self.n} ops"}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row a decision; needs `gpumem[pandas]`.

        `kind` (`swap`, `recompute`, `hold` or `variant`), and the fields of all kinds: `<NA>` where a kind has none.
        Ops count in the iteration; `duration_ns` and `workspace_bytes` are a variant's; `at` is there for a rerun's.
        """
        names = {kind: name for name, kind in KINDS.items()}
        whole = [f.name for f in dict.fromkeys(f for kind in KINDS.values() for f in fields(kind)) if f.type == "int"]
        columns = {name: [getattr(d, name, -1) for d in self.decisions] for name in dict.fromkeys(whole)}
        rows: dict[str, Any] = {"kind": [names[type(d)] for d in self.decisions]}
        rows |= {_UNITS.get(name, name): column for name, column in columns.items()}
        table = frame(rows, index="decision", absent=-1, among=[name for name in rows if name != "kind"])
        table["name"] = [getattr(d, "name", "") for d in self.decisions]
        return table

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The swaps among the decisions."""
        return tuple(d for d in self.decisions if isinstance(d, Swap))

    @strict
    def apply(self, trace: Trace) -> Trace:
        """Return `trace` rewritten by this plan.

        A swapped buffer becomes shorter device buffers, a host buffer for each value that it keeps there,
        and copies on the streams `d2h` and `h2d`. At one place the copies out come first, ties in plan
        order; then come the reruns of that place, in recorded order. A copy-out is left away where the host still
        holds the value: nothing wrote the buffer since an earlier copy-out. A rerun leaves statistics alone. Of a
        random op that runs again the host keeps 16 bytes, its generator's state, from the op to its last rerun. The
        new trace's `of` composes with the old one's.

        Raises
        ------
        ValueError
            A decision that does not fit the trace; the message names it and says why.

        Notes
        -----
        O((n + d) log (n + d) + accesses) for d decisions and reruns. A lifetime is shortened by its gaps, and where a
        `Hold` drops its dead tail; it is lengthened by a `Hold`, by nothing else. What no decision names stays.
        """
        return self.carried(trace).trace

    @strict
    def carried(self, trace: Trace) -> Carried:
        """Return what `apply` does, and where the copies of each decision ended up in issue order.

        >>> from gpumem.trace import Buffers, Ops
        >>> trace = Trace(Buffers.make([8], [0], [3]), Ops.make([[], [], [0]], [[0], [], []]))
        >>> done = Plan.of(trace, [Swap(buffer=0, after=0, before=2, release=1, prefetch=2)]).carried(trace)
        >>> done.trace.ops.name, done.out, done.back
        (('', 'copy_out', '', 'copy_in', ''), array([1]), array([3]))
        """
        if self.n and self.n != trace.n:
            raise ValueError(f"plan: made for {self.n} ops, the trace has {trace.n}")
        self._known()
        return rewrite(trace, self.decisions, blocking=self.blocking)

    def _known(self) -> None:
        for i, decision in enumerate(self.decisions):
            if not isinstance(decision, Decision):
                raise TypeError(f"plan: decision {i}: {decision!r:.60} is no Swap, Recompute, Hold or Variant")

    def to_json(self) -> str:
        """Return the plan as JSON, one decision a line."""
        self._known()
        names = {kind: name for name, kind in KINDS.items()}
        rows = [json.dumps({"kind": names[type(d)], **_fields(d)}) for d in self.decisions]
        head = f'"format": "{FORMAT}", "trace": {json.dumps(self.trace)}, "n": {self.n}'
        head += ', "blocking": true' if self.blocking else ""
        return "{" + head + ', "decisions": [\n' + ",\n".join(rows) + "\n]}\n"

    @classmethod
    @strict
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan back.

        Raises
        ------
        ValueError
            Not JSON, not a plan, a decision of an unknown kind or with a wrong field.
        """
        try:
            file = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"plan: not JSON ({error}): {reprlib.repr(text)}") from None
        given = file.get("format") if isinstance(file, dict) else None
        if given != FORMAT:
            raise ValueError(f"plan: format {given!r} is not {FORMAT!r}")
        rows, n, blocking = file.get("decisions"), file.get("n", 0), file.get("blocking", False)
        if not isinstance(rows, list) or type(n) is not int or n < 0:
            raise ValueError("plan: `decisions` must be a list and `n` a number of ops")
        if type(blocking) is not bool:
            raise ValueError(f"plan: blocking {blocking!r:.60} is neither true nor false")
        return cls(tuple(_decision(i, row) for i, row in enumerate(rows)), n, str(file.get("trace", "")), blocking)


def _fields(d: Decision) -> dict[str, Any]:
    """The fields of a decision, but for those that are left out."""
    return {f.name: value for f in fields(d) if (value := getattr(d, f.name)) != f.default}


def _decision(i: int, row: Any) -> Decision:
    if not isinstance(row, dict) or "kind" not in row:
        raise ValueError(f"plan: decision {i}: {row!r:.60} has no kind; there are {', '.join(KINDS)}")
    kind = str(row["kind"])
    if kind not in KINDS:
        raise ValueError(f"plan: decision {i}: kind {kind!r} is unknown; there are {', '.join(KINDS)}")
    for key in row:
        one_of(f"plan: decision {i} ({kind})", key, ["kind", *(f.name for f in fields(KINDS[kind]))])
    for field in fields(KINDS[kind]):
        if field.name not in row:
            if field.default is MISSING:
                raise ValueError(f"plan: decision {i} ({kind}): `{field.name}` is missing")
            continue
        value = row[field.name]
        if field.type == "str" and not isinstance(value, str):
            raise ValueError(f"plan: decision {i} ({kind}): {field.name} {value!r} is not text")
        if field.type == "int" and not (type(value) is int and 0 <= value < 2**62):
            raise ValueError(f"plan: decision {i} ({kind}): {field.name} {value!r} is not an integer in [0, 2**62)")
    return KINDS[kind](**{name: value for name, value in row.items() if name != "kind"})
