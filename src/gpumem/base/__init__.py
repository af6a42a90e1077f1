"""What knows nothing of GPUs: errors, units, names, budgets, whole files, how packages and objects show themselves.

Everything else may import it, and it imports nothing of `gpumem`. Begin with `units`.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.base.errors import (
        CheckError as CheckError,
        ExecutionError as ExecutionError,
        Infeasible as Infeasible,
        NotReached as NotReached,
    )
    from gpumem.base.units import (
        amount as amount,
        exact as exact,
        fraction as fraction,
        human as human,
        human_ns as human_ns,
        moment as moment,
        percent as percent,
    )

lazy_interface(__name__)
