"""How long an op takes on a machine, predicted from measurements: it knows no jobs.

Read `samples` first: an op as a predictor sees it, and tables of measured ones. Then `predict`: a network for each type
of op (`network`), fitted to measurements; a machine's roofline where there is none. `scores` judges predictions of
shapes that were not learned from, `synthetic` makes measurements up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.latency.network import Training as Training
    from gpumem.latency.network import shapes as shapes
    from gpumem.latency.network import sizes as sizes
    from gpumem.latency.predict import Estimates as Estimates
    from gpumem.latency.predict import Predictor as Predictor
    from gpumem.latency.predict import durations as durations
    from gpumem.latency.predict import estimates as estimates
    from gpumem.latency.predict import estimator as estimator
    from gpumem.latency.predict import fit as fit
    from gpumem.latency.samples import LatencyTable as LatencyTable
    from gpumem.latency.samples import Measurement as Measurement
    from gpumem.latency.samples import Sample as Sample
    from gpumem.latency.samples import model_samples as model_samples
    from gpumem.latency.samples import read_table as read_table
    from gpumem.latency.samples import samples as samples
    from gpumem.latency.samples import split as split
    from gpumem.latency.samples import write_table as write_table
    from gpumem.latency.scores import Score as Score
    from gpumem.latency.scores import scores as scores
    from gpumem.latency.synthetic import grid as grid
    from gpumem.latency.synthetic import synthetic as synthetic

face(__name__)
