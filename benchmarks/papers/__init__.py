"""The tables and figures of the papers, measured here and shown next to what was published.

`smartpool` has Table I of SmartPool (Zhang et al. 2019, section VI-A), `autoswap` figures 8 to 11 and Table II of
AutoSwap (section VI-B), `published` what the text of these two says of its tables and figures, `singa` what SINGA, in
which both were measured, holds where PyTorch does not; `tensile` has Tables 1 and 2 and figure 6 of TENSILE,
`tensile_experiment` its experiment in a world that errs, `snu`
figures 7 and 8 of the SNU thesis, `mosos` figures 2, 4 and 5 of MO-SOS, `waterwave` Tables 1 and 2 and figures 2, 3,
7 and 8 of Waterwave. `python -m benchmarks` prints them; `dtr` has figure 2 of DTR, by a command of its own.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from benchmarks.papers import (
        autoswap as autoswap,
        dtr as dtr,
        mosos as mosos,
        published as published,
        singa as singa,
        smartpool as smartpool,
        snu as snu,
        tensile as tensile,
        tensile_experiment as tensile_experiment,
        waterwave as waterwave,
    )

lazy_interface(__name__)
