"""Whose tensors a plan moves or recomputes, and when: decisions by the module that made the buffer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpumem.base.arguments import strict
from gpumem.base.units import human
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.trace import Trace
from gpumem.trace.kinds import OPT_STATE

ROWS = 12  # modules shown, so that a report fits on a screen; not tuned


@dataclass(frozen=True, slots=True)
class Handled:
    """What a plan does with the tensors of a module, and of those inside it, in one iteration.

    Parameters
    ----------
    module : str
        Its path, as `layer3.0`.
    moved, recomputed : int
        Bytes that leave for the host, and that are dropped to be recomputed.
    tensors : int
        How many gaps that is.
    when : tuple of (str, str)
        In which phase they leave, and in which they are needed next; what concerns the most bytes first.
    """

    module: str
    moved: int
    recomputed: int
    tensors: int
    when: tuple[tuple[str, str], ...]

    @property
    def phases(self) -> str:
        """The phases in words, the first two: `forward to backward`."""
        spans = [f"within {leave}" if leave == back else f"{leave} to {back}" for leave, back in self.when]
        return ", ".join([*spans[:2], *(["..."] if len(spans) > 2 else [])])


@strict
def by_module(trace: Trace, plan: Plan, *, rows: int = ROWS) -> list[Handled]:
    """Sum a plan up by module paths, as deep as `rows` rows allow; the first to leave comes first.

    Parameters
    ----------
    trace : Trace
        What the plan is for; paths and phases (attribute `phase`) of its ops as `gpumem.torch.capture.capture` records
        them.
    plan : Plan
    rows : int
        Where there are more modules even at the top, the last row is the rest.

    Returns
    -------
    list of Handled
        Sorted by the op at which the first of their tensors leaves.
    """
    gaps = [gap for gap in plan.decisions if isinstance(gap, Swap | Recompute)]
    paths = [module_of(trace, gap.buffer) for gap in gaps]
    deepest = max((path.count(".") + 1 for path in paths), default=1)
    for depth in range(deepest, 0, -1):
        short = [".".join(path.split(".")[:depth]) for path in paths]
        if len(set(short)) <= rows:
            break
    known = Counter(short)
    if len(known) > rows:
        kept = {path for path, _ in known.most_common(rows - 1)}
        short = [path if path in kept else f"({len(known) - rows + 1} others)" for path in short]
    groups: dict[str, list[Swap | Recompute]] = {}
    for path, gap in sorted(zip(short, gaps), key=lambda pair: pair[1].after):
        groups.setdefault(path, []).append(gap)
    return [_summed(trace, path, own) for path, own in groups.items()]


def module_of(trace: Trace, buffer: int) -> str:
    """Return the path of the module that a buffer belongs to: by its name, or by the op that makes it.

    Names of parameters end in the parameter's own, those of optimizer states in that and the state's. What no module
    has goes by its kind, in brackets.
    """
    buffers = trace.buffers
    if buffers.name[buffer]:
        parts = buffers.name[buffer].split(".")
        path = ".".join(parts[: -2 if buffers.kind[buffer] == OPT_STATE else -1])
    else:
        path = trace.ops.module[int(buffers.start[buffer])] if trace.ops.module else ""
    return path or f"({buffers.kind[buffer] or 'no module'})"


def _summed(trace: Trace, path: str, gaps: list[Swap | Recompute]) -> Handled:
    size = trace.buffers.size
    moved = sum(int(size[gap.buffer]) for gap in gaps if isinstance(gap, Swap))
    recomputed = sum(int(size[gap.buffer]) for gap in gaps if isinstance(gap, Recompute))
    when: Counter[tuple[str, str]] = Counter()
    for gap in gaps:
        when[_phase(trace, gap.after), _phase(trace, gap.before)] += int(size[gap.buffer])
    return Handled(path, moved, recomputed=recomputed, tensors=len(gaps), when=tuple(dict(when.most_common())))


def _phase(trace: Trace, op: int) -> str:
    attributes = trace.ops.attributes
    own = attributes[op % trace.n] if attributes else None
    return ("the next " if op >= trace.n else "") + str((own or {}).get("phase", "iteration"))


def rows_of(handled: list[Handled]) -> list[list[str]]:
    """Write the summary as cells for `columns`, a head first.

    >>> rows_of([Handled("layer1", 2048, 0, 1, (("forward", "backward"),))])[1]
    ['layer1', '2.00 KiB', '-', 'forward to backward']
    """
    head = ["module", "moved", "recomputed", "when"]
    return [
        head,
        *(
            [
                module.module,
                *(human(size) if size else "-" for size in (module.moved, module.recomputed)),
                module.phases,
            ]
            for module in handled
        ),
    ]
