"""How long an op takes on a machine, predicted from measurements: it knows no jobs.

Read `samples` first: an op as a predictor sees it, and tables of measured ones. Then `predictor`: a network for each
type of op (`network`), fitted to measurements; a machine's roofline where there is none. `calibration` corrects that
roofline by measurements, for all types at once. `scores` judges predictions of what was not learned from, `synthetic`
makes measurements up, `measured` has a backend measure a step.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.execute.latency.calibration import Calibration as Calibration, calibrate as calibrate
    from gpumem.execute.latency.measured import measured as measured, measured_machine as measured_machine
    from gpumem.execute.latency.network import (
        Network as Network,
        Training as Training,
        shapes as shapes,
        sizes as sizes,
    )
    from gpumem.execute.latency.predictor import (
        Estimates as Estimates,
        HasTrace as HasTrace,
        Predictor as Predictor,
        estimates as estimates,
        estimator as estimator,
        fit as fit,
    )
    from gpumem.execute.latency.samples import (
        LatencyTable as LatencyTable,
        Measurement as Measurement,
        Sample as Sample,
        model_samples as model_samples,
        read_table as read_table,
        samples as samples,
        split as split,
        table_rows as table_rows,
        write_table as write_table,
    )
    from gpumem.execute.latency.scores import Score as Score, scores as scores
    from gpumem.execute.latency.synthetic import grid as grid, synthetic as synthetic

lazy_interface(__name__)
