"""Plan a step into 70 % of its memory: what is swapped and when, where every buffer lies, what it costs.

`plan` asks a swap planner, rewrites the trace, places it, times it and has it checked. The picture is memory over the
step.
"""

import gpumem

planned = gpumem.plan(gpumem.bundled("vgg16"), "gtx1080ti", pool="70%")
print(planned.table())
print(planned.checked)
for swap in planned.plan.swaps[:3]:
    print(swap)
gpumem.plot.profile(planned.before.trace, planned.trace, planned.pool).figure.savefig("02_plan.png")
