"""Studies: tables and figures of papers, the leaderboard, suites of them, how fast things are, and what a GPU says.

Run in a checkout: `python -m benchmarks SUITE ...`. They import what they measure, and nobody imports them.
"""
