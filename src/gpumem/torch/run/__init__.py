"""A PyTorch step within a limit: what it takes to run a plan, or none, without changing a bit.

Read `managed` first. Below it, each knowing only those before: `cells` (storages, and where their bytes are), `engines`
(how bytes move), `memory` (who is on the device, within the limit), `on_cuda` (how bytes move beside a GPU's kernels),
`again` (calls that run again), `hints` (a plan by the ops around which it acts), `follow` (where in the plan a run
stands), `iterations` (when one ends, what it was).
"""
