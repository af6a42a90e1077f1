"""The search over passes of `_checkpoint_rollout`: by which rules, for how much less memory, with which buffers held.

A pass takes milliseconds, so many are tried: first a grid of rules, each for the limit and for some less, since a pass
knows only roughly how much scratch its recomputations need; then with those dead buffers held that are recomputed most
often; then with the worth of each gap changed at random, as long as there is work left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.swap.baselines._checkpoint_prices import PlanSearch, PricedPlan
from gpumem.swap.baselines._checkpoint_rollout import rollout
from gpumem.swap.baselines._checkpoint_state import DropRules, PassFacts
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.trace import F64, I64, Trace

# All numbers here were tried on twenty recorded steps and the eight logs of DTR's authors (docs/papers/recompute.md);
# none is tuned beyond that.

# Shares of the limit that a pass is to keep to.
LIMIT_SHARES = (1.0, 0.97, 0.93, 0.88, 0.8)
# Once it is known which rules do well, only the first few of them.
FEW_SHARES = LIMIT_SHARES[:3]
# Powers of the time until the next read, and weights of children: `DropRules.half_powers` and `DropRules.children`.
GRID = ((0, 0.0), (1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0))
# Shares of the limit that dead buffers may take.
HELD_SHARES = (0.01, 0.03, 0.1)
# How often more of them are held.
HOLD_ROUNDS = 3
# Steps of all passes and plans, as in `_checkpoint_prices`: a few seconds.
WORK = 60_000_000
# A small trace gets less: so many steps for each pair of ops, but enough for this number of passes.
PAIR_STEPS, LEAST_PASSES = 400, 60
# Steps that a pass counts at least: what the call takes.
PASS_STEPS = 20_000
# So many steps of a pass take as long as one step of a plan that is priced.
STEPS_EACH = 8
# A pass ends where it has recomputed so many ops for each op of the trace: a plan that takes longer is of no use.
RECOMPUTED_EACH = 3
# It also ends where it took this part of all the work.
LONGEST_PASS = WORK // 12
# The standard deviation of the logarithm of a gap's worth, where it changes at random.
SPREADS = (0.1, 0.3, 1.0)
# The share of gaps that change.
CHANGED_SHARES = (0.02, 0.1, 0.5)
# Passes leave the work divided by this: half of it for single gaps, the rest for dead buffers that are held.
LAST_PART = 6


class PassTrial(NamedTuple):
    """The rules of a pass, the buffers that are held, and the plan that came of it."""

    share: float  # of the limit
    half_powers: int
    children: float
    factor: F64  # m: of each gap's worth
    until: I64
    plan: PricedPlan


@dataclass(slots=True, eq=False, kw_only=True)
class EvictionSearch(PlanSearch):
    """All gaps within the iteration, and the search over passes."""

    facts: PassFacts

    @classmethod
    def of(cls, trace: Trace, account: RecomputableGaps, *, limit: int) -> EvictionSearch:
        """Look at the trace once."""
        buffers = trace.buffers
        dead = np.flatnonzero(~buffers.host & ~buffers.persistent & (buffers.end < trace.n) & (buffers.size > 0))
        left = min(WORK, max(LEAST_PASSES * PASS_STEPS, PAIR_STEPS * trace.n**2))
        facts = PassFacts.of(account)
        return cls(account=account, trace=trace, last=facts.lasts, dead=dead, limit=limit, left=left, facts=facts)

    def search(self, *, hold: bool) -> PricedPlan:
        """Return the cheapest plan found within the limit, or the one of the lowest peak."""
        gaps, stop = len(self.account.buffer), self.left // LAST_PART
        none_held = np.full(len(self.account.size), -1, np.int64)
        keep_all = self.price(np.zeros(gaps, np.int64), none_held)
        best = PassTrial(share=1.0, half_powers=0, children=0.0, factor=np.ones(gaps), until=none_held, plan=keep_all)
        best = self.best([best, *self.grid(best, LIMIT_SHARES)])
        for _ in work.each(range(HOLD_ROUNDS if hold else 0)):
            held = (trial for start in self.held(best) for trial in self.grid(start, FEW_SHARES))
            best = self.best([best, *held])
        best = self.vary(best, stop)
        plan = self.improve_gaps(best.plan, stop // 2)
        return self.hold(plan) if hold else plan

    def best(self, trials: Iterable[PassTrial]) -> PassTrial:
        """Return the first of those that rank highest."""
        return min(trials, key=lambda trial: self.rank(trial.plan))

    def grid(self, start: PassTrial, shares: tuple[float, ...]) -> Iterable[PassTrial]:
        """Run by all rules of the grid, with the factors and the held buffers of `start`."""
        for share, (half_powers, children) in product(shares, GRID):
            if self.is_over():
                return
            yield self.run(start._replace(share=share, half_powers=half_powers, children=children))

    def run(self, trial: PassTrial) -> PassTrial:
        """Run a pass and price its plan; a pass that fails counts as the plan that keeps all."""
        rules = DropRules(
            limit=int(self.limit * trial.share),
            half_powers=trial.half_powers,
            children=trial.children,
            factor=trial.factor,
            recomputed=RECOMPUTED_EACH * self.trace.n,
            steps=LONGEST_PASS * STEPS_EACH,
        )
        at, fits, steps = rollout(self.account, self.facts, rules, trial.until)
        self.left -= PASS_STEPS + steps // STEPS_EACH
        return trial._replace(plan=self.price(at if fits else np.zeros_like(at), trial.until))

    def held(self, trial: PassTrial) -> Iterable[PassTrial]:
        """Hold more of the dead buffers, those that cost most ns of recomputation per byte, for each share of bytes."""
        last, ns = self.account.written(trial.plan.at, trial.until)
        size, dead = self.trace.buffers.size, self.dying(last)
        dead = dead[trial.until[dead] < 0]
        dead = dead[np.argsort(-ns[dead] / size[dead], kind="stable")]
        for share in HELD_SHARES if len(dead) else ():
            chosen = dead[np.cumsum(size[dead]) <= share * self.limit]
            until = trial.until.copy()
            until[chosen] = last[chosen]
            yield trial._replace(until=until)

    def vary(self, best: PassTrial, stop: int) -> PassTrial:
        """Change at random what gaps are worth, and accept what is no worse, until only `stop` of the work is left."""
        random = np.random.default_rng(0)
        while not self.is_over() and self.left > stop and best.plan.costs.ns != 0:
            spread, share = random.choice(SPREADS), random.choice(CHANGED_SHARES)
            change = np.exp(random.normal(0.0, spread, len(best.factor)) * (random.random(len(best.factor)) < share))
            proposal = self.run(best._replace(factor=best.factor * change))
            if self.rank(proposal.plan) <= self.rank(best.plan):
                best = proposal
        return best
