"""A PyTorch training step as a trace: what it holds, whether it fits, what it would take.

Read `capture` first, then `fit`. A workload is a function `make(batch=...)` that builds everything and returns `step`,
which runs one iteration; no memory is needed for it, as it runs on the `meta` device unless set otherwise. Needs
`gpumem[torch]`.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.runtime.residency.limited_memory import LimitError as LimitError
    from gpumem.runtime.residency.report import Iteration as Iteration, ManagedReport as ManagedReport
    from gpumem.torch.capture.capture import capture as capture, record as record
    from gpumem.torch.capture.captured import Captured as Captured
    from gpumem.torch.capture.compare import (
        CaptureComparison as CaptureComparison,
        Parting as Parting,
        compare as compare,
    )
    from gpumem.torch.capture.explain import ByBackend as ByBackend
    from gpumem.torch.capture.load_workload import load as load, load_nets as load_nets
    from gpumem.torch.capture.script import TrainingScript as TrainingScript
    from gpumem.torch.compiled.solver import Solver as Solver, solver as solver
    from gpumem.torch.fit import fit as fit
    from gpumem.torch.fit_report import Fit as Fit, Largest as Largest
    from gpumem.torch.internals.partitioner import NoSolver as NoSolver
    from gpumem.torch.measure import MeasuredStep as MeasuredStep, measure as measure, rates as rates
    from gpumem.torch.run.managed import Managed as Managed, managed as managed
    from gpumem.torch.step.workload import WorkloadError as WorkloadError
    from gpumem.torch.values.assumed import Assumption as Assumption

lazy_interface(__name__)
