"""GPU memory in deep-learning training: where to put every buffer, what to swap and when.

Everything is ``Trace -> Trace -> Placement -> Timeline``. The names below are loaded at first use, so
that ``import gpumem`` costs nothing and pulls in neither NumPy nor Numba.

>>> import gpumem
>>> trace = gpumem.bundled("mlp3")
>>> trace.n
40
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface
from gpumem.base.version import __version__ as __version__

if TYPE_CHECKING:
    from gpumem import check as check
    from gpumem.base.errors import CheckError as CheckError, Infeasible as Infeasible, NotReached as NotReached
    from gpumem.io import bundled as bundled, read as read, write as write
    from gpumem.pipeline import Planned as Planned, plan as plan
    from gpumem.pipeline.report import plot as plot
    from gpumem.pool import best_fit as best_fit, first_fit as first_fit
    from gpumem.simulator import workspaces as workspaces
    from gpumem.simulator.machine import Machine as Machine
    from gpumem.simulator.simulate import simulate as simulate
    from gpumem.simulator.timeline import Timeline as Timeline
    from gpumem.swap import Hold as Hold, Plan as Plan, Recompute as Recompute, Swap as Swap, Variant as Variant
    from gpumem.swap.autoswap import autoswap as autoswap
    from gpumem.trace import Trace as Trace
    from gpumem.trace.placement import Placement as Placement
    from gpumem.trace.record.recorder import Recorder as Recorder
    from gpumem.trace.record.recording import Recording as Recording

lazy_interface(__name__)
