"""The certified bound: what no swap plan can beat.

Read `certify` first: the least limit without a stall, the least stall at a limit. `swap/fluid` is the relaxation that
both bound, its linear program and the certificate.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import face

if TYPE_CHECKING:
    from gpumem.swap.bound.certify import (
        Bound as Bound,
        least_stall as least_stall,
        zero_stall_limit as zero_stall_limit,
    )

face(__name__)
