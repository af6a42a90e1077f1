"""Swap planners: `Trace, Machine, limit -> Plan`. `PLANNERS` has them by name, as records of their options.

Read `plan` first: the language of decisions, and what carrying them out does to a trace. Then `facts`, which every
planner asks for: limits, what is held and when, how long copies and recomputations take; the gaps between accesses are
part of the language. Each published planner has a folder: `autoswap`, `snu`, `tensile`, `mosos`, `dtr`, and
`baselines`. `search` goes where they do not get to, `bound` says what none of them can beat. `tasks` is what schedulers
of several jobs agree on.

The contract of a planner is `planner(trace, machine, limit, *, ...) -> Plan`: `machine` gives the times of ops and
copies and the pinned-host budget, `limit` is what the live bytes of the rewritten trace must not exceed at
any op. The plan is empty where the trace fits already. `seconds` is the whole time that a planner may take: it
looks at the clock between its steps, and ends with the best plan that it has, or with `NotReached` (see
`gpumem.base.work`). The compiling of loops, when they are first called, does not count. What comes out then depends on
the machine; without `seconds` a planner is deterministic. A planner raises `Infeasible` where some op must hold more
than `limit` bytes whatever is swapped or dropped, `NotReached` where it gives up above the limit (`reached`: the lowest
peak that it got to), and `ValueError` for a limit below 1 or an option that is none.

A planner is a record (`PlannerRecord`): its options are fields, checked when it is made; `planner_of` makes one of any
name, `module:name` or function. `propose` returns a `Proposal`: the plan, its time by the byte-counting simulation, and
what is proved. Planners that prove are integer programs: they take a plan to `start` with and a certified least time,
`bound`; without `seconds` they do a fixed amount of work. An interrupt carries a note that says how far they got.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.autoswap import AutoSwap as AutoSwap, Bayes as Bayes, autoswap as autoswap, bayes as bayes
    from gpumem.swap.baselines import (
        Capuchin as Capuchin,
        Checkpoint as Checkpoint,
        VDnn as VDnn,
        VDnnDyn as VDnnDyn,
        capuchin as capuchin,
        checkpoint as checkpoint,
        vdnn as vdnn,
        vdnn_dyn as vdnn_dyn,
    )
    from gpumem.swap.bound import Bound as Bound, least_stall as least_stall, zero_stall_limit as zero_stall_limit
    from gpumem.swap.dtr import Dtr as Dtr, dtr as dtr
    from gpumem.swap.facts import Times as Times
    from gpumem.swap.facts.limits import fits as fits
    from gpumem.swap.facts.recompute import (
        REASONS as REASONS,
        Recomputable as Recomputable,
        backward_start as backward_start,
        kept_over as kept_over,
        recomputable as recomputable,
    )
    from gpumem.swap.mosos import Mosos as Mosos, mosos as mosos, solve_mosos as solve_mosos
    from gpumem.swap.plan import Hold as Hold, Plan as Plan, Recompute as Recompute, Swap as Swap, Variant as Variant
    from gpumem.swap.plan.gaps import Gaps as Gaps, Spans as Spans, Windows as Windows, gaps as gaps
    from gpumem.swap.planner import (
        Declared as Declared,
        Planner as Planner,
        PlannerRecord as PlannerRecord,
        Proposal as Proposal,
    )
    from gpumem.swap.planners import PLANNERS as PLANNERS, planner_of as planner_of, planners_of as planners_of
    from gpumem.swap.search import Search as Search, search as search
    from gpumem.swap.snu import (
        Heuristic as Heuristic,
        Ilp as Ilp,
        OnDemand as OnDemand,
        heuristic as heuristic,
        ilp as ilp,
        on_demand as on_demand,
        solve_ilp as solve_ilp,
    )
    from gpumem.swap.tasks import Scheduled as Scheduled, Task as Task
    from gpumem.swap.tensile import Tensile as Tensile, schedule as schedule, tensile as tensile

lazy_interface(__name__)
