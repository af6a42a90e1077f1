"""Waterwave: jobs that are trained at the same time, on streams that take turns in taking memory and giving it back.

Read `node_groups` first, then `pipeline` (which of them run side by side) and `co_schedule` (all of it as one trace).
`balanced` searches the groups as well, `priorities` says whose turn it is. `sharing_policies` are policies by
name, the paper's and its baselines; `rounds` lets jobs come and go by the simulated clock, `co_run` runs them with real
bytes. `threads` enqueues node groups from real threads, with a `barrier` between slots. `algorithm1` is the paper's
schedule as printed, `op_order` the order of a job's ops, `slot_log` what ran when, `round_clock` what a round takes.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.jobs.waterwave.algorithm1 import algorithm1 as algorithm1
    from gpumem.jobs.waterwave.balanced import balanced as balanced, takes as takes
    from gpumem.jobs.waterwave.barrier import CounterBarrier as CounterBarrier
    from gpumem.jobs.waterwave.co_run import run_together as run_together
    from gpumem.jobs.waterwave.co_schedule import CoSchedule as CoSchedule, co_schedule as co_schedule
    from gpumem.jobs.waterwave.node_groups import (
        NodeGroup as NodeGroup,
        Partition as Partition,
        atoms as atoms,
        partition as partition,
    )
    from gpumem.jobs.waterwave.online_run import Online as Online, run_online as run_online
    from gpumem.jobs.waterwave.op_order import by_depth as by_depth, depth as depth, reordered as reordered
    from gpumem.jobs.waterwave.pipeline import Pipeline as Pipeline, Turn as Turn, pipeline as pipeline
    from gpumem.jobs.waterwave.priorities import by_weight as by_weight
    from gpumem.jobs.waterwave.rounds import simulate_together as simulate_together
    from gpumem.jobs.waterwave.sharing_policies import (
        SHARING_POLICIES as SHARING_POLICIES,
        SharingPolicy as SharingPolicy,
        halves as halves,
        round_ns as round_ns,
        searched as searched,
        temporal as temporal,
        waterwave as waterwave,
        waterwave_s as waterwave_s,
    )
    from gpumem.jobs.waterwave.slot_log import (
        GroupRun as GroupRun,
        OpRun as OpRun,
        PipelineStart as PipelineStart,
        SlotLog as SlotLog,
    )
    from gpumem.jobs.waterwave.threads import PipelineExecutor as PipelineExecutor
    from gpumem.jobs.waterwave.two_ends import in_pool as in_pool, two_ends as two_ends

lazy_interface(__name__)
