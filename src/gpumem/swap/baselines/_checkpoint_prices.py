"""Plans of recomputations priced one by one, and what a search does with any of them at the end.

What all plans may take is counted in steps, so that a search is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

import numpy as np

from gpumem.base import work
from gpumem.swap.facts.recompute_cost import Costs, MadeAgain, loads
from gpumem.swap.plan.decisions import Hold, Recompute
from gpumem.trace import I64, Trace

WORK = 48_000_000  # what all plans that are priced may take: about as many as there are ops in them, and
RERUN = 4  # for each rerun, which is followed in detail,
PLAN = 2_000  # and for each plan
# A plan may run ops again, as many as that and as many of each: what it makes of the trace takes 400 bytes for each. It
# is there for traces of 10,000 ops and more, where chains of reruns are long and grow with the square. Not tuned.
RERUNS, EACH = 1_000_000, 16
FAR = 2**62


@dataclass(frozen=True, slots=True)
class Found:
    """Before which op each gap is made again (0: kept), until when dead buffers are held (-1: not), what that costs."""

    at: I64
    until: I64
    costs: Costs


@dataclass(slots=True, eq=False, kw_only=True)
class Prices:
    """The gaps that plans are about, by the account that prices them, and what is left of the work."""

    account: MadeAgain
    trace: Trace
    last: I64  # of each gap the last place to make it again at; 0: none
    dead: I64  # buffers that may be held
    limit: int
    left: int = WORK
    random: Random = field(default_factory=lambda: Random(0))
    known: dict[bytes, Costs] = field(default_factory=dict)

    def decisions(self, found: Found) -> list[Recompute | Hold]:
        """Return what is dropped, by place, and what is held."""
        a, at = self.account, found.at
        rows = np.lexsort((np.arange(len(at)), at))[np.sum(at == 0) :]
        columns = (column[rows].tolist() for column in (a.buffer, a.after, a.before, at))
        held = np.flatnonzero(found.until >= 0)
        return [*map(Recompute, *columns), *map(Hold, held.tolist(), found.until[held].tolist())]

    def over(self) -> bool:
        """Return whether the search has to end."""
        return self.left <= 0 or work.over()

    def price(self, at: I64, until: I64) -> Found:
        """Return what a plan costs."""
        key = blake2b(at.tobytes() + until.tobytes(), digest_size=16).digest()  # the plans themselves would fill memory
        if key not in self.known:
            most = max(RERUNS, EACH * self.trace.n)
            costs = self.known[key] = self.account.costs(at, until, most)
            self.left -= PLAN + len(self.account.duration) + RERUN * max(costs.reruns, 0)
        return Found(at, until, self.known[key])

    def rank(self, found: Found) -> tuple[int, int]:
        """What is better comes first: the peak down to the limit, then time."""
        c = found.costs
        return (max(c.peak, self.limit), c.ns) if c.peak >= 0 else (FAR, FAR)

    def single(self, found: Found, stop: int) -> Found:
        """Keep single gaps after all, or bring them back as late as can be, while that helps.

        It ends where only `stop` of the work is left. Within the limit only what may help is priced: to keep what there
        is room for beside all but reruns, or to bring back later what came early.
        """
        better, held = True, self.room(found)
        while better:
            better = False
            order = list(range(len(self.last)))
            self.random.shuffle(order)
            for k in order:
                for at in self.others(found, k, held):
                    if self.over() or self.left <= stop:
                        return found
                    changed = found.at.copy()
                    changed[k] = at
                    tried = self.price(changed, found.until)
                    if self.rank(tried) < self.rank(found):
                        found, better = tried, True
                        held = self.room(found)
        return found

    def room(self, found: Found) -> I64:
        """Return the bytes that are free at each position, without reruns; above the limit, more than there are."""
        if found.costs.peak > self.limit:
            return np.full(len(self.account.load), FAR)
        return self.limit - loads(self.account, found.at, found.until)

    def others(self, found: Found, k: int, room: I64) -> list[int]:
        """Before which ops else gap `k` may be made again."""
        a, now, last = self.account, int(found.at[k]), int(self.last[k])
        others = [last] if last > a.after[k] + 1 and now != last and (now or found.costs.peak > self.limit) else []
        if now and room[2 * a.after[k] + 2 : 2 * now].min() >= a.size[a.buffer[k]]:
            others.append(0)
        return others

    def dying(self, last: I64) -> I64:
        """Return the dead buffers that reruns write after their lifetime, `last` by op; others hold nothing longer."""
        return self.dead[last[self.dead] > self.trace.buffers.end[self.dead]]

    def hold(self, found: Found) -> Found:
        """Hold buffers that die early until their last rerun, while that helps."""
        last, ns = self.account.written(found.at, found.until)
        scratch = self.dying(last)
        for b in scratch[np.argsort(-ns[scratch] / self.account.size[scratch], kind="stable")].tolist():
            if self.over():
                break
            until = found.until.copy()
            until[b] = last[b]
            found = min(found, self.price(found.at, until), key=self.rank)
        return found
