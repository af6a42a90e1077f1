"""Programs that know nothing of plans: they allocate, run and free, and find themselves inside their limit.

Read `adaptive` first, the papers' transparent device, and `worlds`, where it runs. Then `residency`: who is on the
device; `hints`, a plan by the ops around which it acts; `follow`, where in it a run stands; `learner`, which has the
iteration found and planned for. `planning` makes plans beside the run, `log` and `report` say what came of it.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import face

if TYPE_CHECKING:
    from gpumem.live.adaptive import Adaptive as Adaptive
    from gpumem.live.backing import Backing as Backing, backing as backing
    from gpumem.live.clocked import Clocked as Clocked
    from gpumem.live.cupy import cupy_allocator as cupy_allocator
    from gpumem.live.joins import Events as Events, Joiner as Joiner
    from gpumem.live.log import LogEntry as LogEntry
    from gpumem.live.memory import PoolMemoryResource as PoolMemoryResource
    from gpumem.live.pages import Pages as Pages, PageStatistics as PageStatistics, Range as Range
    from gpumem.live.programs import play as play
    from gpumem.live.report import Iteration as Iteration, ManagedReport as ManagedReport
    from gpumem.live.residency import LimitError as LimitError
    from gpumem.live.served import Served as Served
    from gpumem.live.streams import Addresses as Addresses, OnStreams as OnStreams
    from gpumem.live.worlds import (
        InMemory as InMemory,
        LiveBlock as LiveBlock,
        LiveWorld as LiveWorld,
        OnClock as OnClock,
    )

face(__name__)
