"""SmartPool as it runs: requests in, addresses out, without a trace.

Read `smartpool` first: the allocator. `_observer` finds the iteration, `_table` plans it, `_cursor` follows it,
`_region` holds the planned bytes, `_deviations` counts what was not planned.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.pool.runtime._deviations import Deviation as Deviation
    from gpumem.pool.runtime.smartpool import SmartPool as SmartPool

face(__name__)
