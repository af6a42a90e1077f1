"""Questions asked of several parts at once.

`combined` makes a plan whose placed trace fits a pool, `knee` finds the lowest limit that costs nothing, `comparison`
runs a plan beside the unmanaged program, `footprint` and `call_cost` compare pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.evaluate.combined import Combined as Combined
    from gpumem.evaluate.combined import at_load as at_load
    from gpumem.evaluate.combined import cheapest as cheapest
    from gpumem.evaluate.combined import in_pool as in_pool
    from gpumem.evaluate.combined import settle as settle
    from gpumem.evaluate.knee import knee as knee

face(__name__)
