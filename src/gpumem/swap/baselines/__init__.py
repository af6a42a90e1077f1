"""What the papers compare themselves with: a file each, all with the signature of a planner.

`vdnn` offloads feature maps layer by layer, `vdnn_dyn` chooses of which layers, and the algorithms of convolutions,
`capuchin` swaps or recomputes by measured times (`capuchin_policy` chooses), `checkpoint` recomputes segments.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.baselines.capuchin import Capuchin as Capuchin, capuchin as capuchin
    from gpumem.swap.baselines.checkpoint import Checkpoint as Checkpoint, checkpoint as checkpoint
    from gpumem.swap.baselines.vdnn import VDnn as VDnn, vdnn as vdnn
    from gpumem.swap.baselines.vdnn_dyn import VDnnDyn as VDnnDyn, vdnn_dyn as vdnn_dyn

lazy_interface(__name__)
