"""Tables 1 and 2 and figures 2, 3, 7 and 8 of Waterwave (Shi et al.): jobs that share a GPU side by side.

Read `published` first, the paper's figures. `batches` has the largest batch that fits (Tables 1 and 2), `pools` that
in an allocator's pool and `pool_rounds` why it needs more, `group_sizes`
that over the size of node groups (figure 8), and groups of any length and priorities, beyond the paper; `throughput`
what gets done (figure 7), `hosts` what a host that issues and waits changes (figures 2 and 3). Beyond the paper too:
`sharing_and_swapping`, what swapping adds. `tables` has tables and pictures.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from benchmarks.papers.waterwave.batches import (
        FEW as FEW,
        PIECES as PIECES,
        Sizing as Sizing,
        judged_ns as judged_ns,
        mixed as mixed,
        needed as needed,
        ordered as ordered,
        several as several,
    )
    from benchmarks.papers.waterwave.group_sizes import (
        OF_NEED as OF_NEED,
        WEIGHTS as WEIGHTS,
        grouped as grouped,
        lengths as lengths,
        loops as loops,
        splits as splits,
        weighted as weighted,
    )
    from benchmarks.papers.waterwave.hosts import (
        HOST_NS as HOST_NS,
        a_host_a_stream as a_host_a_stream,
        freed as freed,
        late as late,
        sequential as sequential,
    )
    from benchmarks.papers.waterwave.pool_rounds import pool_rounds as pool_rounds
    from benchmarks.papers.waterwave.pools import in_pools as in_pools
    from benchmarks.papers.waterwave.published import model_of as model_of
    from benchmarks.papers.waterwave.sharing_and_swapping import (
        OF_PEAKS as OF_PEAKS,
        SECONDS as SECONDS,
        SHARING as SHARING,
        sharing as sharing,
    )
    from benchmarks.papers.waterwave.tables import TABLES as TABLES, figures as figures
    from benchmarks.papers.waterwave.throughput import (
        PARTS as PARTS,
        SLOWDOWNS as SLOWDOWNS,
        missed as missed,
        slowed as slowed,
        throughput as throughput,
    )

lazy_interface(__name__)
