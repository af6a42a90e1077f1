"""How far durations may be off their estimates, as options of several commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpumem.cli.common.parser import Parser

if TYPE_CHECKING:
    from gpumem.simulator.uncertainty import Uncertainty

OPTIONS = {"spread": "--spread", "bias": "--bias", "noise": "--noise", "copy_noise": "--copy-noise"}
OPTIONS |= {"link": "--link-rate", "link_used": "--link-used", "seed": "--seed"}  # `jobs --link` is whose copies wait


def add_uncertainty(p: Parser, *, seed: bool = True) -> None:
    """Add the options that `uncertainty_of` reads; without `seed` the command has a `--seed` already."""
    group = p.add_argument_group("how far durations are off their estimates")
    texts = {
        "spread": "of a lasting log-normal factor of each op, its sigma: 0.5 puts half of all ops off by 34%% or more",
        "bias": "what all ops take, of their estimates (default: 1)",
        "noise": "of a log-normal factor of each op in each iteration, its sigma",
        "copy_noise": "the same of each copy",
        "link": "part of the link's rate that is there (default: 1)",
        "link_used": "part of the time, below 1, for which someone else has the link",
    }
    for field, told in texts.items():
        group.add_argument(OPTIONS[field], type=float, metavar="X", help=told)
    if seed:
        group.add_argument("--seed", type=int, metavar="N", help="of the errors that are drawn (default: 0)")


def uncertainty_of(args: argparse.Namespace) -> Uncertainty:
    """Return what the options of `add_uncertainty` describe; what was not given is certain.

    Raises
    ------
    ValueError
        A number out of range; the text names the option.

    Examples
    --------
    >>> parser = Parser()
    >>> add_uncertainty(parser)
    >>> uncertainty_of(parser.parse_args(["--spread", "0.3", "--link-rate", "0.5"]))
    Uncertainty(spread=0.3, bias=1.0, noise=0.0, copy_noise=0.0, link=0.5, link_used=0.0, seed=0)
    >>> uncertainty_of(parser.parse_args(["--link-rate", "2"]))
    Traceback (most recent call last):
    ValueError: --link-rate: 2.0 is not in (0, 1]
    """
    from gpumem.simulator.uncertainty import Uncertainty

    words = {field: option.lstrip("-").replace("-", "_") for field, option in OPTIONS.items()}
    given = {field: value for field, word in words.items() if (value := getattr(args, word)) is not None}
    try:
        return Uncertainty(**given)
    except ValueError as error:
        field, colon, told = str(error).partition(":")
        raise ValueError(f"{OPTIONS.get(field, field)}{colon}{told}") from None
