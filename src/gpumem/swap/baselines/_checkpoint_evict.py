"""The search over runs of `_checkpoint_rollout`: by which rules, for how much less memory, with what held.

A run takes milliseconds, so many are tried: first a grid of rules, each for the limit and for some less, since a run
knows only roughly what reruns need; then with dead buffers held that reruns make most often; then with what each gap
is worth changed at random, as long as there is work left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.swap.baselines._checkpoint_prices import Found, Prices
from gpumem.swap.baselines._checkpoint_rollout import DropRules, Facts, rollout
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.trace import F64, I64, Trace

# Tried on twenty recorded steps and the eight logs of DTR's authors; nothing is tuned beyond that.
SHARES = (1.0, 0.97, 0.93, 0.88, 0.8)  # of the limit, that a run is to keep to
CLOSE = SHARES[:3]  # where it is known which rules do well
GRID = ((0, 0.0), (1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0))  # powers of the time and weights of children: see `DropRules`
HELD = (0.01, 0.03, 0.1)  # of the limit, that dead buffers may take
ROUNDS = 3  # of holding more
WORK = 60_000_000  # of all, as in `_checkpoint_prices`,
SQUARE, LEAST = 400, 60  # or, if that is less, for each pair of ops, but as many runs as that,
RUN = 20_000  # and of each run at least: what a call takes
STEP = 8  # steps of a run that take as long as one op of a plan that is priced
RERUNS = 3  # for each op, at most: what takes longer is no use to anybody
ONE = WORK // 12  # what a run may take
SPREAD = (0.1, 0.3, 1.0)  # of the logarithm of a gap's worth,
SOME = (0.02, 0.1, 0.5)  # and of how many gaps
LAST = 6  # the part of the work that is left for single gaps and buffers


class Way(NamedTuple):
    """How a run goes, and what it came to."""

    share: float
    half_powers: int
    children: float
    factor: F64
    until: I64
    found: Found


@dataclass(slots=True, eq=False, kw_only=True)
class Evictions(Prices):
    """All gaps within the iteration, and the search over runs."""

    facts: Facts

    @classmethod
    def of(cls, trace: Trace, account: MadeAgain, *, limit: int) -> Evictions:
        """Look at the trace once."""
        b = trace.buffers
        dead = np.flatnonzero(~b.host & ~b.persistent & (b.end < trace.n) & (b.size > 0))
        facts, left = Facts.of(account), min(WORK, max(LEAST * RUN, SQUARE * trace.n**2))
        return cls(account=account, trace=trace, last=facts.lasts, dead=dead, limit=limit, left=left, facts=facts)

    def search(self, *, hold: bool) -> Found:
        """Return the cheapest plan found within the limit, or the one of the lowest peak."""
        gaps, stop = len(self.account.buffer), self.left // LAST
        none = np.full(len(self.account.size), -1, np.int64)
        nothing = self.price(np.zeros(gaps, np.int64), none)
        best = Way(1.0, 0, 0.0, np.ones(gaps), none, nothing)
        best = self.best([best, *self.runs(best, SHARES)])
        for _ in work.each(range(ROUNDS if hold else 0)):
            best = self.best([best, *(way for like in self.held(best) for way in self.runs(like, CLOSE))])
        best = self.vary(best, stop)
        found = self.single(best.found, stop // 2)
        return self.hold(found) if hold else found

    def best(self, ways: Iterable[Way]) -> Way:
        """Return the first of those that rank highest."""
        return min(ways, key=lambda way: self.rank(way.found))

    def runs(self, like: Way, shares: tuple[float, ...]) -> Iterable[Way]:
        """Run by all rules of the grid, with what another run has besides."""
        for share, (half_powers, children) in product(shares, GRID):
            if self.over():
                return
            yield self.run(like._replace(share=share, half_powers=half_powers, children=children))

    def run(self, way: Way) -> Way:
        """Run, and price the plan; one that does not come to its end only shows that it was tried."""
        limit = int(self.limit * way.share)
        rules = DropRules(limit, way.half_powers, way.children, way.factor, RERUNS * self.trace.n, ONE * STEP)
        at, fits, steps = rollout(self.account, self.facts, rules, way.until)
        self.left -= RUN + steps // STEP
        return way._replace(found=self.price(at if fits else np.zeros_like(at), way.until))

    def held(self, way: Way) -> Iterable[Way]:
        """Hold more of the dead buffers, those that cost reruns most for their bytes, in a few amounts."""
        last, ns = self.account.written(way.found.at, way.until)
        b, dead = self.trace.buffers, self.dying(last)
        dead = dead[way.until[dead] < 0]
        dead = dead[np.argsort(-ns[dead] / b.size[dead], kind="stable")]
        for share in HELD if len(dead) else ():
            mine = dead[np.cumsum(b.size[dead]) <= share * self.limit]
            until = way.until.copy()
            until[mine] = last[mine]
            yield way._replace(until=until)

    def vary(self, best: Way, stop: int) -> Way:
        """Change at random what gaps are worth, and keep what helps, until only `stop` of the work is left."""
        random = np.random.default_rng(0)
        while not self.over() and self.left > stop and best.found.costs.ns != 0:
            spread, some = random.choice(SPREAD), random.choice(SOME)
            change = np.exp(random.normal(0.0, spread, len(best.factor)) * (random.random(len(best.factor)) < some))
            tried = self.run(best._replace(factor=best.factor * change))
            if self.rank(tried.found) <= self.rank(best.found):
                best = tried
        return best
