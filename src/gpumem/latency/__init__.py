"""How long an op takes on this machine, predicted from its shapes: it knows no jobs.

Read `predict` first: a network for each type of op (`network`), fitted to measurements (`samples`), scored on shapes
that it has not seen (`scores`). `synthetic` makes measurements up, for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.latency.predict import Predictor as Predictor
    from gpumem.latency.predict import durations as durations
    from gpumem.latency.predict import estimates as estimates
    from gpumem.latency.predict import estimator as estimator
    from gpumem.latency.predict import fit as fit
    from gpumem.latency.samples import Measurement as Measurement
    from gpumem.latency.samples import Sample as Sample
    from gpumem.latency.samples import model_samples as model_samples
    from gpumem.latency.samples import read_table as read_table
    from gpumem.latency.samples import samples as samples
    from gpumem.latency.samples import write_table as write_table
    from gpumem.latency.scores import scores as scores
    from gpumem.latency.synthetic import synthetic as synthetic

face(__name__)
