"""`python -m benchmarks`: planners and allocators against bounds and the papers.

Read `suite` first: a suite says what its parts are and measures them; options that all have, text, JSON and files come
from there.
"""

from __future__ import annotations

from benchmarks.suites import mosos, peers, planners, pool, snu, swap, tensile, uncertain, waterwave
from gpumem.cli.common.parser import Parser

SUITES = (
    *(swap.SUITE, pool.SUITE, tensile.SUITE, snu.SUITE, mosos.SUITE, waterwave.SUITE, planners.SUITE),
    *(uncertain.SUITE, peers.SUITE),
)


def parser() -> Parser:
    """Return the parser of all suites."""
    about = "Measure planners and allocators against bounds and the papers."
    whole = Parser(prog="python -m benchmarks", description=about)
    suites = whole.add_subparsers(title="suites", dest="word", metavar="SUITE", parser_class=Parser)
    suites.required = True
    for suite in SUITES:
        suite.add(suites)
    return whole
