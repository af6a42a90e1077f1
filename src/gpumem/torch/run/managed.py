"""Run an unmodified PyTorch step under a memory limit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.names import one_of
from gpumem.pipeline import Planned
from gpumem.pipeline.compare_planners import IN_A_RUN, asking
from gpumem.pipeline.planned import given
from gpumem.runtime.residency.background_planning import Planning
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.swap.planners import planner_of
from gpumem.torch.internals import torch
from gpumem.torch.run.engines import POINTERS, Engine, OnHost
from gpumem.torch.run.managed_run import DEVICE, HOST, Managed as Managed
from gpumem.torch.run.on_cuda import LIKE, Gpu, OnCuda, advice, machine_of
from gpumem.torch.run.on_demand import DtrEvictor
from gpumem.torch.step.foreach_chunks import in_bytes
from gpumem.torch.step.workload import WorkloadError
from gpumem.trace import Trace

TOLD = "told"  # boundaries are where the program calls `boundary()`
LRU, DTR = "lru", "dtr"
SIZELESS = (
    f"PyTorch {torch.__version__}: what is on the host has no size here, so torch.save within the run writes a wrong "
    "file, and limits may be passed; 2.12 is the oldest version that is supported"
)


@strict
def managed(  # noqa: PLR0913  public: a keyword for each choice of a run
    limit: int | str,
    plan: Planned | tuple[Trace, Plan] | str | Path | None = None,
    machine: Machine | str | None = None,
    boundary: torch.optim.Optimizer | str | None = None,
    *,
    on_exit: str = DEVICE,
    on_demand: str = LRU,
    planner: str | Sequence[str] = IN_A_RUN,
    seconds: float = 30.0,
    wait: bool = False,
    chunk: int | str | None = None,
    device: str | None = None,
) -> Managed:
    """Run an unmodified training step under a memory limit, with the same bits as without one.

    The first iterations run on demand: before each op whatever it touches is brought to the device, and the least
    recently used is evicted for that. They are recorded; when two are alike, a plan is made beside the run, and
    followed from the end of an iteration on. A plan gives hints: an operand that is off the device is brought back when
    its op runs, so a step that does something else than planned is slower, never wrong. When that goes on, another plan
    is made.

    Parameters
    ----------
    limit : int or str
        Bytes that tensors may hold on the device at once, or a text such as `"4GiB"`, or `"70%"` (of the peak of the
        iteration that was recorded; until then there is none).
    plan : Planned, (Trace, Plan) or path, optional
        A plan for what `capture` or `fit` recorded of the same step; the run begins with it. A path is that of a folder
        which `gpumem fit --out` wrote.
    machine : Machine or str, optional
        What plans are made for: the link's bandwidth, and how long ops take where that is not measured. Left out, on
        CUDA what the card is called, and its link measured where no preset has that name; on the host an `rtx4090`.
    boundary : Optimizer or str, optional
        Where an iteration ends: at the end of this optimizer's step; `"told"`: where `boundary()` of the run is called.
        Left out, at the end of optimizers' steps, several where they take turns, else where ops repeat.
    on_exit : str
        `"device"`: on leaving everything comes back to the device; where what lasts does not fit, that is refused after
        the second iteration. `"host"`: every managed tensor is one of the host from then on, as by `.to("cpu")`.
    on_demand : str
        What is evicted while no plan is followed. `"lru"`: the least recently used, to the host. `"dtr"`: what takes
        least time to get back, for its bytes and for how long it was not used. It is copied to the host, or dropped
        and recomputed, whichever takes less on `machine`.
    planner : str or sequence of str
        Names in `swap.PLANNERS`, or `module:name` of your own; the cheapest plan counts. Left out, two that take no
        time, and `search`.
    seconds : float
        Of planning, at most, once there is a plan. The first plan is followed as soon as it exists, better ones from
        the end of an iteration on, while the search goes on.
    wait : bool
        Let the run wait for its plan.
    chunk : int or str, optional
        As in `capture`: the most bytes of a call on lists of tensors. Left out, an eighth of the limit; with a plan,
        what it was recorded with, so none where that was left out there.
    device : str, optional
        `cuda` or `cpu`; left out, `cuda` where there is one: the device that is current when this is called; tensors on
        another one are refused. On `cpu` the host plays the device, and memory of NumPy the host.

    Returns
    -------
    Managed
        Use it in a `with` statement, or as a decorator of a step: then each call is an iteration, and all tensors are
        restored when it returns. `report()` has a row for each iteration.

    Raises
    ------
    ValueError
        What is wrong with an argument.
    LimitError
        From within the run: an op alone holds more than the limit, or what lasts does.
    WorkloadError
        From within the run: a compiled module, a CUDA graph, a tensor subclass, a module that spreads over devices,
        another thread that touches what is managed, another run inside of this one.

    Notes
    -----
    The limit is for the bytes of tensors. What kernels take for themselves, and what the allocator rounds up or cannot
    use, comes on top.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> def step():
    ...     optimizer.zero_grad()
    ...     net(torch.randn(512, 64)).square().mean().backward()
    ...     optimizer.step()
    >>> with managed("70%", planner="on-demand", wait=True, device="cpu") as run:
    ...     for _ in range(5):
    ...         step()
    >>> [row.state for row in run.report().iterations]
    ['recorded', 'recorded', 'planned', 'planned', 'planned']
    >>> run.report().iterations[-1].peak == run.report().planned_peak <= run.report().limit
    True
    """
    names = [planner] if isinstance(planner, str) else [*planner]
    if not names:
        raise ValueError(f"planner: none is named; several are {', '.join(IN_A_RUN)}")
    for name in names:
        planner_of(name)
    if isinstance(boundary, str):
        one_of("boundary", boundary, (TOLD,))
    elif boundary is not None and not isinstance(boundary, torch.optim.Optimizer):
        raise TypeError(f"boundary: {boundary!r:.60} is no optimizer, nor {TOLD!r}")
    if not isinstance(limit, (int, str)):
        raise TypeError(f"limit: {limit!r:.60} is no number of bytes, nor a text such as '4GiB' or '70%'")
    one_of("on_exit", on_exit, (DEVICE, HOST))
    one_of("on_demand", on_demand, (LRU, DTR))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    one_of("device", device, ("cpu", "cuda"))
    work.check_seconds(seconds)
    engine, chosen = _on(device, machine)
    run = Managed(
        limit,
        engine,
        POINTERS,
        device,
        boundary=boundary,
        on_exit=on_exit,
        planning=lambda trace, limit: Planning(trace, limit, asking(chosen, limit, names), seconds),
        wait=wait,
        chunk=in_bytes(chunk),
    )
    if on_demand == DTR:
        run.mode.on_demand = DtrEvictor(run.memory, chosen)
    for note in advice() if device == "cuda" else ():
        run.loop.note(note)
    if not POINTERS.views:
        warnings.warn(SIZELESS, stacklevel=2)
    if plan is not None:
        run.follow(*given(plan))
    return run


def _on(device: str, machine: Machine | str | None) -> tuple[Engine, Machine]:
    """The engine of a device, and the machine that plans are made for."""
    chosen = machine if isinstance(machine, Machine) else Machine.named(machine or LIKE)
    if device == "cpu":
        return OnHost(), chosen
    if not torch.cuda.is_available():
        raise WorkloadError("device: 'cuda': PyTorch sees no CUDA device here; 'cpu' has the host play its part")
    gpu = Gpu()
    return OnCuda(gpu), machine_of(gpu) if machine is None else chosen
