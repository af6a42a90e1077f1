"""`gpumem bench`: planners and allocators against bounds and the papers.

Read `suite` first: a suite says what its parts are and measures them; options that all have, text, JSON and files come
from there.
"""

from __future__ import annotations

from gpumem.cli.common.parser import Commands, Parser
from gpumem.commands.bench import mosos, planners, pool, snu, swap, tensile, waterwave

SUITES = (swap.SUITE, pool.SUITE, tensile.SUITE, snu.SUITE, mosos.SUITE, waterwave.SUITE, planners.SUITE)


def add(commands: Commands) -> None:
    """Add the command and its suites."""
    p = commands.add_parser("bench", help="measure planners and allocators against bounds and the papers")
    suites = p.add_subparsers(required=True, metavar="SUITE", parser_class=Parser)
    for suite in SUITES:
        suite.add(suites)
