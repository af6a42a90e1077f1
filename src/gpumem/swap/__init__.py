"""Swap planners: `Trace, Machine, limit -> Plan`. `PLANNERS` names them for the command line.

Read `plan` first: the language of decisions, and what carrying them out does to a trace. Then the facts that every
planner asks for: `gaps` between accesses (`windows`: with times and copies), `limits`, `recompute`; and `accounts`:
what is held, and when. Each published planner is a wing: `autoswap`, `snu`, `tensile`, and `baselines`. `search` goes
where they do not get to, `bound` says what none of them can beat. `tasks` is what schedulers of several jobs agree on.

The contract of a planner is `planner(trace, machine, limit, *, ...) -> Plan`: `machine` gives the times of ops and
copies and the pinned-host budget, `limit` is the bytes that the load of the rewritten trace must not exceed at any op.
The plan is empty where the load fits already. A planner raises `Infeasible` where some op must hold more than `limit`
bytes whatever is swapped or dropped, `NotReached` where it gives up above the limit (`reached`: the lowest load that it
got to), and `ValueError` for a limit below 1 or an option that is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.accounts.times import Times as Times
    from gpumem.swap.autoswap.bayes import bayes as bayes
    from gpumem.swap.autoswap.planner import autoswap as autoswap
    from gpumem.swap.baselines.capuchin import capuchin as capuchin
    from gpumem.swap.baselines.checkpoint import checkpoint as checkpoint
    from gpumem.swap.baselines.vdnn import vdnn as vdnn
    from gpumem.swap.bound import Bound as Bound
    from gpumem.swap.bound import least_stall as least_stall
    from gpumem.swap.bound import zero_stall_limit as zero_stall_limit
    from gpumem.swap.gaps import Gaps as Gaps
    from gpumem.swap.gaps import gaps as gaps
    from gpumem.swap.limits import fits as fits
    from gpumem.swap.plan import Plan as Plan
    from gpumem.swap.plan import Recompute as Recompute
    from gpumem.swap.plan import Swap as Swap
    from gpumem.swap.plan import Variant as Variant
    from gpumem.swap.planners import PLANNERS as PLANNERS
    from gpumem.swap.recompute import REASONS as REASONS
    from gpumem.swap.recompute import backward_start as backward_start
    from gpumem.swap.recompute import kept_over as kept_over
    from gpumem.swap.recompute import recomputable as recomputable
    from gpumem.swap.search.planner import search as search
    from gpumem.swap.snu.heuristic import heuristic as heuristic
    from gpumem.swap.snu.on_demand import on_demand as on_demand
    from gpumem.swap.tasks import Scheduled as Scheduled
    from gpumem.swap.tasks import Task as Task
    from gpumem.swap.tensile.planner import schedule as schedule
    from gpumem.swap.tensile.planner import tensile as tensile

face(__name__)
