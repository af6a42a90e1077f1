"""Named nets to record, at any batch: the traces that the benchmarks use, and others like them.

Begin with `recipe`: it reads a name such as `resnet50_224_b64_adam` and returns a workload.
`python -m gpumem.torch.zoo` writes trace files. Most nets need libraries: `gpumem[zoo]`.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.torch.zoo.names import recipe as recipe
    from gpumem.torch.zoo.recipe import Input as Input, Net as Net, Recipe as Recipe
    from gpumem.torch.zoo.table import TRACES as TRACES, ZOO as ZOO

lazy_interface(__name__)
