"""How low can it go? Planners beside what is certified to be impossible.

No plan of swaps is free below the first bound; `least_stall` says how much any plan of swaps for a limit must wait.
`search` gets below that: it also makes values again.
"""

import gpumem
from gpumem.simulator import simulate
from gpumem.swap import PLANNERS, least_stall, zero_stall_limit

trace, machine = gpumem.bundled("vgg16"), gpumem.Machine.named("gtx1080ti")
bound = zero_stall_limit(trace, machine, rounds=3)
print(f"free at best: {bound.limit / trace.peak_live_bytes:.1%} of the peak live bytes")

limit, before = trace.peak_live_bytes // 2, simulate(trace, machine)
stall = least_stall(trace, machine, limit, rounds=3).stall_ns
print(f"at 50 %: swaps alone cost at least {stall / before.makespan:.1%}")
for name, options in {"autoswap": {}, "heuristic": {}, "search": {"effort": 0.02}}.items():
    plan = PLANNERS[name](trace, machine, limit, **options)
    print(f"{name:10} {simulate(plan.apply(trace), machine, capacity=limit).overhead(before):.1%}")
