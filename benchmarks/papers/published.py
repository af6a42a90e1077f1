"""What the text of Zhang et al. 2019 quotes of its tables and figures, which are images in our copy.

MB as the paper has them; limits as a part of its peak live bytes, since our traces hold less.
"""

from __future__ import annotations

import re

from gpumem.pipeline.report import Series

BELOW_CNMEM = {"vgg11": 0.133}  # Table I (VI-A)
PEAKS = {"vgg16": 647.0, "resnet50": 4418.0}  # MB at batch 100 (VI-B4)
FREE = {"vgg16": 447.0, "resnet50": 2906.0}  # MB, the lowest load without overhead: Table II (VI-B4)
REDUCTIONS = {net: 1 - FREE[net] / PEAKS[net] for net in FREE}

ANALYSED = 350 / PEAKS["vgg16"]  # of the peak live bytes: where the paper looks at what could be avoided (VI-B3), and
OPTIMALITY = (7.3, 1.7)  # ms there, by the tuned score, and the most of it that could be

_PERCENT = 100 / PEAKS["vgg16"]
# Figure 9, VGG16: no overhead down to 447 MB; all scores below 20 % down to 280 MB (VI-B2).
FIGURE9 = (
    Series("published, for nothing", [FREE["vgg16"] * _PERCENT], [0.0], "point"),
    Series("published, all scores below", [280 * _PERCENT], [20.0], "at most"),
)
# Figure 11: of MXNet-memonger on VGGs (VI-C2), and of SmartPool with AutoSwap, next to CnMem (VI-C1). SuperNeurons and
# GeePS are in the figure, but the text has no number of theirs.
MEMONGER = Series("published, MXNet-memonger below", [40.0], [30.0], "at most")
COMBINED = (
    Series("published, SmartPool+AutoSwap for nothing", [100 / 3], [0.0], "point"),
    Series("published, SmartPool+AutoSwap below", [60.0], [15.0], "at most"),
)


def net_of(trace: str) -> tuple[str, str]:
    """Return the family and the name of the net that a trace is of, two empty texts where the paper has none such.

    >>> net_of("vgg16_cifar_b100")
    ('vgg', 'vgg16')
    """
    found = re.match(r"(vgg|resnet)\d+", trace)
    return (found[1], found[0]) if found else ("", "")


def figure11(trace: str) -> tuple[Series, ...]:
    """Return the marks of figure 11 for the net of a trace."""
    family, _ = net_of(trace)
    return ((MEMONGER,) if family == "vgg" else ()) + (COMBINED if family else ())
