"""What `Plan.apply` does, in phases: what is decided, when it is issued, which buffers there are, which ops.

Each phase leaves records that no later one changes, except the table of new buffers, to which recomputations add::

    decisions -> Cut, Holds, Replay     what the plan decides, checked
              -> IssueOrder, Issued     where copies and recomputations go in issue order
              -> NewBuffers, CutBuffers  device pieces and host buffers of each cut buffer
              -> NewOp                  copies and recomputations, then all ops of the new trace
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.base.display import Shown
from gpumem.swap.plan._cuts import find_cuts, find_holds, find_replays
from gpumem.swap.plan._issue_order import Copy, issue_order, issued
from gpumem.swap.plan._new_buffers import NONE, CutBuffers, NewBuffers, renumbering
from gpumem.swap.plan._new_ops import NewOp, Recomputations, copy_op, keep_generators, merge
from gpumem.swap.plan.decisions import Decision
from gpumem.swap.plan.variants import own_workspaces, recomputed_variants, variants_of
from gpumem.trace import I64, Trace


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Carried(Shown):
    """A plan carried out: the rewritten trace, and where in its issue order the ops of each decision ended up.

    `out`, int64[d]: index of the copy-out, -1 where there is none: the host still holds the value, or the decision
    is no swap. `back`, int64[d]: index of the copy-in, or of the last recomputation that writes it; -1 for others.
    """

    trace: Trace
    out: I64
    back: I64


def rewrite(trace: Trace, decisions: Sequence[Decision], *, blocking: bool = False) -> Carried:
    """Return `trace` with the decisions carried out; see `Plan.apply`."""
    out, back = np.full((2, len(decisions)), -1, np.int64)
    if not decisions:
        return Carried(trace, out, back)

    # What is decided.
    trace = variants_of(trace, decisions)
    holds = find_holds(trace, decisions)
    cuts_of = find_cuts(trace, decisions, holds)
    replays = find_replays(trace, decisions)  # after these: it trusts what they have checked
    variants = recomputed_variants(trace, decisions, replays)

    # When it is issued.
    cuts = [cut for row in cuts_of.values() for cut in row]
    order = issue_order(trace.n, cuts, replays)
    when = issued(order, cuts)
    for cut in cuts:
        out[cut.rank], back[cut.rank] = when[cut.rank].out, when[cut.rank].ready

    # Which buffers that makes.
    buffers = NewBuffers.of(trace, holds.until, order)
    pieces_of: dict[int, list[int]] = {}
    connects: dict[int, CutBuffers] = {}  # by a cut's rank
    for buffer, row in cuts_of.items():
        pieces = pieces_of[buffer] = buffers.split(buffer, row, when)
        hosts = buffers.keep_on_host(buffer, row, when)
        for cut, source, target in zip(row, pieces, pieces[1:]):
            connects[cut.rank] = CutBuffers(source, target, hosts.get(cut.rank, NONE))

    # Which ops.
    own = own_workspaces(trace) if variants else {}
    recomputations, added = Recomputations(trace, buffers, pieces_of, variants, own), list[NewOp]()
    for item, first in zip(order.inserted, order.first):
        if isinstance(item, Copy):
            added.append(copy_op(item, connects[item.cut.rank], trace.n))
        else:
            added += recomputations.replay(item, first)
    ops = merge(trace.ops, added, order, renumbering(trace, cuts_of, pieces_of), blocking=blocking)
    keep_generators(buffers, ops)
    return Carried(Trace(buffers.finish(), ops, name=trace.name), out, back)
