"""SmartPool: placed offline by a trace, and as it runs, requests in, addresses out, without one.

`offline` is best-fit and first-fit. `online` is the allocator: `_iteration` finds the iteration, and is its plan, a
request a row; `_cursor` says where in it the program is, `_region` has the planned bytes, `_statistics` counts what was
not as planned.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.pool.smartpool._statistics import Deviation as Deviation
    from gpumem.pool.smartpool.online import SmartPool as SmartPool

lazy_interface(__name__)
