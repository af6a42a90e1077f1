"""Place the buffers of a training step, and see how close to the least possible pool that comes.

The peak load is a bound: no placement is lower. SmartPool's best fit takes large buffers first; `search` looks for less
and ends where it has met the bound.
"""

import gpumem
from gpumem.pool import search

for name in ("vgg16", "resnet18", "mlp3"):
    trace = gpumem.bundled(name)
    greedy, searched = gpumem.best_fit(trace), search(trace, effort=0.1)
    gpumem.check.placement(trace, searched)  # no two buffers share a byte while both are alive; raises otherwise
    ratios = f"best fit {greedy.ratio(trace):.4f}  search {searched.ratio(trace):.4f}"
    print(f"{name:9} load {trace.peak_live_bytes:>11,}  {ratios}")
