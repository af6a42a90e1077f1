"""Programs that know nothing of plans: they allocate, run and free, and find themselves inside their limit.

Read `adaptive` first, the papers' transparent device, and `devices`, where it runs. Then `residency`: who is on the
device (`limited_memory`), a plan by the ops around which it acts (`hints`), where in it a run stands (`follower`), what
has the iteration found and planned for (`run_loop`), by a thread beside the run (`background_planning`). `pooled` and
`paged` are memory for others, `emm`, `cuda_core` and `cupy` the integrations; `log` says what a device did.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.runtime.adaptive import Adaptive as Adaptive
    from gpumem.runtime.cuda_core import PoolMemoryResource as PoolMemoryResource
    from gpumem.runtime.cupy import cupy_allocator as cupy_allocator
    from gpumem.runtime.devices.in_memory import InMemory as InMemory
    from gpumem.runtime.devices.on_clock import Clocked as Clocked, OnClock as OnClock
    from gpumem.runtime.devices.on_streams import Addresses as Addresses, OnStreams as OnStreams
    from gpumem.runtime.log import LogEntry as LogEntry
    from gpumem.runtime.paged.pages import Pages as Pages, PageStatistics as PageStatistics, Range as Range
    from gpumem.runtime.pooled.backing import Backing as Backing, backing as backing
    from gpumem.runtime.pooled.served import Served as Served
    from gpumem.runtime.pooled.stream_joins import Events as Events, Joiner as Joiner
    from gpumem.runtime.residency.environment import LiveBlock as LiveBlock, LiveEnvironment as LiveEnvironment
    from gpumem.runtime.residency.limited_memory import LimitError as LimitError
    from gpumem.runtime.residency.report import Iteration as Iteration, ManagedReport as ManagedReport
    from gpumem.runtime.trace_player import play as play

lazy_interface(__name__)
