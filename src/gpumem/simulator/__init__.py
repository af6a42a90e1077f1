"""How long things take, and who waits for whom.

`machine` says how long ops and copies take, `hazards` which op waits for which, `simulate` when each runs; `sharing` is
that for jobs on one GPU. `workspaces` is what algorithms of convolutions need beside their operands. Begin with
`machine`: `Link.copy_ns` is a copy's time.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.simulator import workspaces as workspaces
    from gpumem.simulator.hazards import BLOCK as BLOCK, Hazards as Hazards, hazards as hazards
    from gpumem.simulator.host_threads import hosted as hosted
    from gpumem.simulator.machine import (
        GIB as GIB,
        PRESETS as PRESETS,
        Link as Link,
        Machine as Machine,
        MeasuredTimes as MeasuredTimes,
    )
    from gpumem.simulator.realised import Realised as Realised, realised as realised
    from gpumem.simulator.sharing import rates as rates, share as share
    from gpumem.simulator.simulate import baseline as baseline, simulate as simulate
    from gpumem.simulator.timeline import (
        CAUSES as CAUSES,
        FREED as FREED,
        NONE as NONE,
        Span as Span,
        Timeline as Timeline,
    )
    from gpumem.simulator.uncertainty import Uncertainty as Uncertainty

lazy_interface(__name__)
