"""How far durations may be off their estimates, as options of several commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpumem.cli.common.parser import Section, option

if TYPE_CHECKING:
    from gpumem.simulator.uncertainty import Uncertainty

ERRORS = {  # by field of `Uncertainty`
    "spread": option(
        "--spread",
        type=float,
        metavar="X",
        help="sigma of a lasting log-normal factor of each op: 0.5 puts half of them off by a third or more",
    ),
    "bias": option("--bias", type=float, metavar="X", help="what all ops take, of their estimates (default: 1)"),
    "noise": option(
        "--noise", type=float, metavar="X", help="of a log-normal factor of each op in each iteration, its sigma"
    ),
    "copy_noise": option("--copy-noise", type=float, metavar="X", help="the same of each copy"),
    "link": option(  # `jobs --link` is whose copies wait
        "--link-rate", type=float, metavar="X", help="part of the link's rate that is there (default: 1)"
    ),
    "link_used": option(
        "--link-used", type=float, metavar="X", help="part of the time, below 1, for which someone else has the link"
    ),
}
SEED = option("--seed", type=int, metavar="N", help="of the errors that are drawn (default: 0)")
OPTIONS = {**ERRORS, "seed": SEED}


def uncertainty_flags(*, seed: bool = True) -> Section:
    """Return the options that `uncertainty_of` reads; without `seed` the command has a `--seed` already."""
    return Section("how far durations are off their estimates", (OPTIONS if seed else ERRORS).values())


def uncertainty_of(args: argparse.Namespace) -> Uncertainty:
    """Return what the options of `uncertainty_flags` describe; what was not given is certain.

    Raises
    ------
    ValueError
        A number out of range; the text names the option.

    Examples
    --------
    >>> from gpumem.cli.common.parser import Parser, add_options
    >>> parser = Parser()
    >>> add_options(parser, uncertainty_flags())
    >>> uncertainty_of(parser.parse_args(["--spread", "0.3", "--link-rate", "0.5"]))
    Uncertainty(spread=0.3, bias=1.0, noise=0.0, copy_noise=0.0, link=0.5, link_used=0.0, seed=0)
    >>> uncertainty_of(parser.parse_args(["--link-rate", "2"]))
    Traceback (most recent call last):
    ValueError: --link-rate: 2.0 is not in (0, 1]
    """
    from gpumem.simulator.uncertainty import Uncertainty

    given = {field: value for field, one in OPTIONS.items() if (value := one.value(args)) is not None}
    try:
        return Uncertainty(**given)
    except ValueError as error:
        field, colon, problem = str(error).partition(":")
        raise ValueError(f"{OPTIONS[field].names[-1]}{colon}{problem}") from None
