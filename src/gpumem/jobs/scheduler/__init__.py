"""TENSILE's run-time system: the same code under a simulated clock and with threads.

Read `controller` first (admission, budgets, replanning), then `executor`: one job, walking its `instructions`, with its
budget in `memory` and its copies in `swaps`. `forecast` predicts times beside other jobs and corrects them. `session`
is a run from start to end, in any execution environment.
"""
