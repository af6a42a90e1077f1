"""A plan: a short, serialisable list of decisions for one iteration, and what they do to a trace."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown, frame
from gpumem.swap.plan._plan_file import FORMAT, read_plan
from gpumem.swap.plan.decisions import KINDS, Decision, Hold, Recompute, Swap, Variant
from gpumem.swap.plan.rewrite import Carried, rewrite
from gpumem.trace import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Decision", "Hold", "Plan", "Recompute", "Swap", "Variant"]

_UNITS = {"duration": "duration_ns", "workspace": "workspace_bytes"}  # of columns that are no ops


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Shown):
    """Decisions for one iteration of `n` ops, in the order in which ties are broken.

    `blocking`: the host waits for each copy of the plan before it launches the next op, as a system does that has no
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
        count = {name: sum(isinstance(decision, kind) for decision in self.decisions) for name, kind in KINDS.items()}
        more: dict[str, object] = {"recomputations": count["recompute"]}
        more |= {f"{name}s": count[name] for name in ("hold", "variant") if count[name]}
        more |= {"copies": "blocking"} if self.blocking else {}
        return {"": self.trace, "swaps": count["swap"], **more, "for": f"{self.n} ops"}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row a decision; needs `gpumem[pandas]`.

        `kind` (`swap`, `recompute`, `hold` or `variant`), and the fields of all kinds: `<NA>` where a kind has none.
        Ops count in the iteration; `duration_ns` and `workspace_bytes` are a variant's; `at` is there for a
        recomputation's.
        """
        names = {kind: name for name, kind in KINDS.items()}
        whole = [
            field.name
            for field in dict.fromkeys(field for kind in KINDS.values() for field in fields(kind))
            if field.type == "int"
        ]
        columns = {name: [getattr(decision, name, -1) for decision in self.decisions] for name in dict.fromkeys(whole)}
        rows: dict[str, Any] = {"kind": [names[type(decision)] for decision in self.decisions]}
        rows |= {_UNITS.get(name, name): column for name, column in columns.items()}
        table = frame(rows, index="decision", absent=-1, integers=[name for name in rows if name != "kind"])
        table["name"] = [getattr(decision, "name", "") for decision in self.decisions]
        return table

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The swaps among the decisions."""
        return tuple(decision for decision in self.decisions if isinstance(decision, Swap))

    @strict
    def apply(self, trace: Trace) -> Trace:
        """Return `trace` rewritten by this plan.

        A swapped buffer becomes shorter device buffers, a host buffer for each value that it keeps there,
        and copies on the streams `d2h` and `h2d`. At one place the copies out come first, ties in plan
        order; then come the recomputations of that place, in recorded order. A copy-out is left out where the host
        still holds the value: nothing wrote the buffer since an earlier copy-out. A recomputation leaves statistics
        alone. Of a random op that is recomputed the host keeps 16 bytes, its generator's state, from the op to its last
        recomputation. The new trace's `of` composes with the old one's.

        Raises
        ------
        ValueError
            A decision that does not fit the trace; the message names it and says why.

        Notes
        -----
        O((n + d) log (n + d) + accesses) for d decisions and recomputations. A lifetime is shortened by its gaps, and
        where a `Hold` drops its dead tail; it is lengthened by a `Hold`, by nothing else. What no decision names stays.
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
        for rank, decision in enumerate(self.decisions):
            if not isinstance(decision, Decision):
                raise TypeError(f"plan: decision {rank}: {decision!r:.60} is no Swap, Recompute, Hold or Variant")

    def to_json(self) -> str:
        """Return the plan as JSON, one decision a line."""
        self._known()
        names = {kind: name for name, kind in KINDS.items()}
        rows = [json.dumps({"kind": names[type(decision)], **_fields(decision)}) for decision in self.decisions]
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
        file = read_plan(text)
        return cls(file.to_decisions(), file.n, file.trace, file.blocking)


def _fields(decision: Decision) -> dict[str, Any]:
    """The fields of a decision, but for those that are left out."""
    return {
        field.name: value for field in fields(decision) if (value := getattr(decision, field.name)) != field.default
    }
