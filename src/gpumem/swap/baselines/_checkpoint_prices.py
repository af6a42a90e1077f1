"""Plans of recomputations priced one by one, and the local search that ends every search over them.

Work is counted in steps instead of seconds, so that a search gives the same plan on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

import numpy as np

from gpumem.base import work
from gpumem.swap.facts.recompute_cost import Costs, RecomputableGaps, loads
from gpumem.swap.plan.decisions import Hold, Recompute
from gpumem.trace import I64, Trace

# Steps that pricing all plans may take; a plan takes one for each op of the trace. Not tuned: a few seconds.
WORK = 48_000_000
# Steps of an op that is recomputed, which is followed in detail. Not tuned.
RECOMPUTED_STEPS = 4
# Steps of the call. Not tuned.
PLAN_STEPS = 2_000
# A plan may recompute `MOST_RECOMPUTED` ops, or `EACH` times as many as the trace has: the rewritten trace takes 400
# bytes for each. That guards traces of 10,000 ops and more, where chains are long and grow with the square. Not tuned.
MOST_RECOMPUTED, EACH = 1_000_000, 16
FAR = 2**62  # bytes and ns, more than any plan has: the rank of a plan that cannot be


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """Before which op each gap's value is recomputed (0: kept), until when dead buffers are held (-1: not), costs."""

    at: I64
    until: I64
    costs: Costs


@dataclass(slots=True, eq=False, kw_only=True)
class PlanSearch:
    """The gaps that plans are about, the account that prices them, and how much of the work is left."""

    account: RecomputableGaps
    trace: Trace
    last: I64  # of each gap the last op before which it can be recomputed; 0: none
    dead: I64  # buffers that may be held
    limit: int
    left: int = WORK
    random: Random = field(default_factory=lambda: Random(0))
    known: dict[bytes, Costs] = field(default_factory=dict)

    def decisions(self, plan: PricedPlan) -> list[Recompute | Hold]:
        """Return what is dropped, by the op before which it is recomputed, and what is held."""
        account, at = self.account, plan.at
        rows = np.lexsort((np.arange(len(at)), at))[np.sum(at == 0) :]
        columns = (column[rows].tolist() for column in (account.buffer, account.after, account.before, at))
        held = np.flatnonzero(plan.until >= 0)
        return [*map(Recompute, *columns), *map(Hold, held.tolist(), plan.until[held].tolist())]

    def is_over(self) -> bool:
        """Return whether the search has to end."""
        return self.left <= 0 or work.over()

    def price(self, at: I64, until: I64) -> PricedPlan:
        """Return a plan with its costs; one that was priced before takes no work."""
        # Plans themselves as keys would fill memory: there are thousands, of two numbers for each gap and buffer.
        key = blake2b(at.tobytes() + until.tobytes(), digest_size=16).digest()
        if key not in self.known:
            most = max(MOST_RECOMPUTED, EACH * self.trace.n)
            costs = self.known[key] = self.account.costs(at, until, most)
            self.left -= PLAN_STEPS + len(self.account.duration) + RECOMPUTED_STEPS * max(costs.recomputed_ops, 0)
        return PricedPlan(at, until, self.known[key])

    def rank(self, plan: PricedPlan) -> tuple[int, int]:
        """Return the peak, but no less than the limit, then the time: the lowest rank is the best."""
        costs = plan.costs
        return (max(costs.peak, self.limit), costs.ns) if costs.peak >= 0 else (FAR, FAR)

    def improve_gaps(self, best: PricedPlan, stop: int) -> PricedPlan:
        """Keep single gaps' values after all, or recompute them as late as can be, while the rank falls.

        It ends where only `stop` of the work is left. Once the limit is reached, only what may save time is priced: to
        keep a value that fits beside all but scratch, or to recompute later what was recomputed early.
        """
        has_converged, headroom = False, self.headroom(best)
        while not has_converged:
            has_converged = True
            order = list(range(len(self.last)))
            self.random.shuffle(order)
            for gap in order:
                for at in self.alternatives(best, gap, headroom):
                    if self.is_over() or self.left <= stop:
                        return best
                    changed = best.at.copy()
                    changed[gap] = at
                    proposal = self.price(changed, best.until)
                    if self.rank(proposal) < self.rank(best):
                        best, has_converged = proposal, False
                        headroom = self.headroom(best)
        return best

    def headroom(self, plan: PricedPlan) -> I64:
        """Return the bytes that are free at each position, scratch not counted; no bound while above the limit."""
        if plan.costs.peak > self.limit:
            return np.full(len(self.account.load), FAR)
        return self.limit - loads(self.account, plan.at, plan.until)

    def alternatives(self, plan: PricedPlan, gap: int, headroom: I64) -> list[int]:
        """Before which ops else the value of `gap` may be recomputed; 0: it is kept."""
        account, now, last = self.account, int(plan.at[gap]), int(self.last[gap])
        after = account.after[gap]
        # Within the limit, to drop what is kept only adds time.
        may_drop = last > after + 1 and now != last and (now or plan.costs.peak > self.limit)
        alternatives = [last] if may_drop else []
        if now and headroom[2 * after + 2 : 2 * now].min() >= account.size[account.buffer[gap]]:
            alternatives.append(0)
        return alternatives

    def dying(self, last: I64) -> I64:
        """Return the dead buffers that recomputations write after their lifetime; `last`: the last such op of each.

        To hold any other would save no recomputation.
        """
        return self.dead[last[self.dead] > self.trace.buffers.end[self.dead]]

    def hold(self, best: PricedPlan) -> PricedPlan:
        """Hold buffers that die early until their last recomputation, those that cost most ns per byte first."""
        last, ns = self.account.written(best.at, best.until)
        scratch = self.dying(last)
        for buffer in scratch[np.argsort(-ns[scratch] / self.account.size[scratch], kind="stable")].tolist():
            if self.is_over():
                break
            until = best.until.copy()
            until[buffer] = last[buffer]
            best = min(best, self.price(best.at, until), key=self.rank)
        return best
