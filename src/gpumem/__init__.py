"""GPU memory in deep-learning training: where to put every buffer, what to swap and when.

Everything is ``Trace -> Trace -> Placement -> Timeline``. The names below are loaded at first use, so
that ``import gpumem`` costs nothing and pulls in neither NumPy nor Numba.

>>> import gpumem
>>> trace = gpumem.bundled("mlp3")
>>> trace.n
40
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem import check as check
    from gpumem.errors import CheckError as CheckError
    from gpumem.errors import Infeasible as Infeasible
    from gpumem.errors import NotReached as NotReached
    from gpumem.evaluate.planned import Planned as Planned
    from gpumem.evaluate.task import plan as plan
    from gpumem.io import bundled as bundled
    from gpumem.io import read as read
    from gpumem.io import write as write
    from gpumem.machine import Machine as Machine
    from gpumem.placement import Placement as Placement
    from gpumem.pool.smartpool import best_fit as best_fit
    from gpumem.pool.smartpool import first_fit as first_fit
    from gpumem.recorder import Recorder as Recorder
    from gpumem.recorder import Recording as Recording
    from gpumem.report import plot as plot
    from gpumem.simulate import simulate as simulate
    from gpumem.swap.autoswap.planner import autoswap as autoswap
    from gpumem.swap.plan import Plan as Plan
    from gpumem.swap.plan import Recompute as Recompute
    from gpumem.swap.plan import Swap as Swap
    from gpumem.swap.plan import Variant as Variant
    from gpumem.timeline import Timeline as Timeline
    from gpumem.trace import Trace as Trace

__version__ = "0.1.0"

face(__name__)
