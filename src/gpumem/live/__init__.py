"""Programs that know nothing of plans: they allocate, run and free, and find themselves inside their limit.

Read `residency` first: who is on the device. Then `hints`, a plan by the ops around which it acts, and `follow`, where
in it a run stands; `planning` makes it beside the run, `report` says what came of it.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.live.joins import Events as Events
    from gpumem.live.programs import play as play
    from gpumem.live.report import Iteration as Iteration, ManagedReport as ManagedReport
    from gpumem.live.residency import LimitError as LimitError
    from gpumem.live.served import Served as Served

face(__name__)
