"""Tables 1 and 2 and figures 2, 3, 7 and 8 of Waterwave (Shi et al.): jobs that share a GPU side by side.

Read `quoted` first, the paper's figures. `batches` has the largest batch that fits (Tables 1 and 2), `splits` that over
the size of node groups (figure 8), `throughput` what gets done (figure 7), `hosts` what a host that issues and waits
changes (figures 2 and 3). Beyond the paper: `lengths` has groups of any length and priorities, `both` what swapping
adds. `shown` has tables and pictures.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import face

if TYPE_CHECKING:
    from gpumem.papers.waterwave.batches import (
        FEW as FEW,
        PIECES as PIECES,
        Sizing as Sizing,
        mixed as mixed,
        needed as needed,
        ordered as ordered,
        several as several,
    )
    from gpumem.papers.waterwave.both import (
        OF_PEAKS as OF_PEAKS,
        SECONDS as SECONDS,
        SHARING as SHARING,
        sharing as sharing,
    )
    from gpumem.papers.waterwave.hosts import (
        HOST_NS as HOST_NS,
        a_host_a_stream as a_host_a_stream,
        freed as freed,
        late as late,
        sequential as sequential,
    )
    from gpumem.papers.waterwave.lengths import (
        OF_NEED as OF_NEED,
        WEIGHTS as WEIGHTS,
        lengths as lengths,
        weighted as weighted,
    )
    from gpumem.papers.waterwave.quoted import model_of as model_of
    from gpumem.papers.waterwave.shown import TABLES as TABLES, figures as figures
    from gpumem.papers.waterwave.splits import grouped as grouped, loops as loops, splits as splits
    from gpumem.papers.waterwave.throughput import (
        PARTS as PARTS,
        SLOWDOWNS as SLOWDOWNS,
        missed as missed,
        slowed as slowed,
        throughput as throughput,
    )

face(__name__)
