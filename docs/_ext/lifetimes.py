"""Pictures of who is on the device when: a small trace with each access, and all values of a forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gpumem import Trace
from gpumem.trace import RECOMPUTE
from gpumem.trace.kinds import ACTIVATION, TEMP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPS = {"compute": "black", "recompute": "#c4581a", "copy_out": "#b03a3e", "copy_in": "#2f7d45"}
PIECES = {"on the device": "#bcd9c4", "in scratch": "#f3c9ab", "on the host": "#d5d5d5"}
MARKS = {  # writes, reads: what an access is called, its marker, how that is filled
    (True, False): ("whole write", "s", "full"),
    (True, True): ("change in place", "s", "bottom"),
    (False, True): ("read", "o", "none"),
}


def lifetimes(ax: Axes, trace: Trace, *, only: str = "") -> None:
    """Draw the buffers called `only` (all where left out): pieces of one buffer share a row, the host has its own.

    What only recomputations touch is scratch. Behind its last access a piece is held for others, and drawn lighter.
    """
    ops, role = trace.ops, [op.role for op in trace.ops]
    touched = trace.accesses()
    rows: dict[str, int] = {}
    seen = set()
    for b in trace.buffers:
        if only and (b.name or b.kind) not in only.split():
            continue
        name = f"{b.name or b.kind}, host" if b.space == "host" else b.name
        y = rows.setdefault(name, len(rows))
        mine = slice(*touched.op.ptr[b.id : b.id + 2])
        where = touched.op.idx[mine].tolist()
        scratch = bool(where) and all(role[i] == "recompute" for i in where)
        piece = "on the host" if b.space == "host" else "in scratch" if scratch else "on the device"
        seen.add(piece)
        last = max(where, default=b.end - 1) + 1 if not b.persistent else b.end
        for left, right, alpha in ((b.start, last, 1.0), (last, b.end, 0.45)):
            ax.barh(y, right - left, left=left, height=0.62, color=PIECES[piece], alpha=alpha, linewidth=0)
        for i, writes, reads in zip(where, touched.writes[mine].tolist(), touched.reads[mine].tolist()):
            _, marker, fill = MARKS[writes, reads]
            ax.plot(i + 0.5, y, marker=marker, fillstyle=fill, color=OPS[role[i]], markerfacecoloralt="white", ms=7)
    for i in range(trace.n):
        if role[i] != "compute":
            ax.axvspan(i, i + 1, color=OPS[role[i]], alpha=0.1, linewidth=0)
    ax.set_xlim(0, trace.n)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.xaxis.tick_top()
    ax.set_xticks([i + 0.5 for i in range(trace.n)], ops.name, rotation=55, ha="left", rotation_mode="anchor")
    for label, kind in zip(ax.get_xticklabels(), role):
        label.set_color(OPS[kind])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    _legend(ax, seen)


def forward_values(ax: Axes, trace: Trace) -> None:
    """Draw when the activations of a trace are on the device: a row each, as high as it has bytes, the first on top."""
    again, touched = trace.ops.role == RECOMPUTE, trace.accesses().op
    pieces = [b for b in trace.buffers if b.kind in (ACTIVATION, TEMP) and b.space == "device" and b.end <= trace.n]
    size, top, end = {b.of: b.size / 2**20 for b in pieces}, dict[int, float](), 0.0
    for b in sorted(pieces, key=lambda b: b.start):
        if b.of not in top:
            top[b.of], end = end, end + size[b.of]
        scratch = bool(again[touched[b.id]].all())
        colour = PIECES["in scratch" if scratch else "on the device"]
        ax.barh(top[b.of], b.end - b.start, size[b.of], b.start, align="edge", color=colour, linewidth=0)
    for i in np.flatnonzero(again).tolist():
        ax.axvspan(i, i + 1, color=OPS["recompute"], alpha=0.16, linewidth=0)
    ax.set(xlim=(0, np.flatnonzero(again)[-1] + 15), ylim=(end, 0))
    ax.set(xlabel="op (with recomputations)", ylabel="values of the forward pass (MiB)")


def _legend(ax: Axes, seen: set[str]) -> None:
    """Say what the marks mean, and the bars that are there."""
    marks = [
        Line2D(
            [], [], marker=marker, fillstyle=fill, color="black", markerfacecoloralt="white", linestyle="", label=name
        )
        for name, marker, fill in MARKS.values()
    ]
    bars = [Patch(color=colour, label=name) for name, colour in PIECES.items() if name in seen]
    ax.figure.legend(handles=[*marks, *bars], loc="outside lower center", ncols=3, frameon=False)
