"""A PyTorch step under a memory limit: what it takes to run a plan, or none, without changing a bit.

Read `managed` first. Below it, each knowing only those before: `cells` (storages, and where their bytes are), `engines`
(how bytes move), `memory` (who is on the device, within the limit), `on_cuda` (how bytes move beside a GPU's kernels),
`recompute` (calls that are recomputed, where in the plan a run stands), `boundaries` (when an iteration ends, what it
was); hints are those of `gpumem.runtime.residency`.
"""
