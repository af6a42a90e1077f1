"""Where jobs run: in simulated time, or with threads, real streams and real bytes.

Read `simulated` first, with `engines` (links and multiprocessors), then `real`, with `threads` and `running`.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.jobs.worlds.real import run_jobs as run_jobs
    from gpumem.jobs.worlds.simulated import simulate_jobs as simulate_jobs

face(__name__)
