"""Record a training step: on no device at all, on the host, or on a GPU."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gpumem.base.arguments import at_least, strict
from gpumem.base.names import one_of
from gpumem.torch.capture.capture_mode import CaptureMode
from gpumem.torch.capture.captured import Captured, cut
from gpumem.torch.capture.fake_cuda import fake_cuda
from gpumem.torch.capture.redirect_device import redirect_device
from gpumem.torch.capture.script import TrainingScript, recorded
from gpumem.torch.internals import torch
from gpumem.torch.step.foreach_chunks import in_bytes
from gpumem.torch.step.refusals import alone, refusing, uncompiled
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.timing import stopwatch
from gpumem.torch.step.workload import Make, Step, WorkloadError, blamed, made, name_of
from gpumem.torch.values.assumed import notes_of
from gpumem.trace import Trace

DEVICES = ("meta", "cpu", "cuda")


@strict
def capture(
    make: Make | TrainingScript,
    device: str = "meta",
    *,
    batch: int | None = None,
    iterations: int = 2,
    warmup: int = 1,
    chunk: int | str | None = None,
    assume: str | None = None,
    name: str = "",
) -> Trace:
    """Record a training step; return its last iteration.

    Parameters
    ----------
    make : callable or TrainingScript
        `make(batch=..., device=...)`, each where it takes it, builds model and optimizer and returns `step`;
        `step()` runs one training iteration. What it returns is let go at once. Or a whole training script, on `meta`.
    device : str
        `meta`: nothing is computed and no memory is taken; tensors made without a device, or on `cuda`, have none, and
        ops are chosen as for CUDA tensors. `cpu`, `cuda`: it trains for real, and every bit comes out as unrecorded.
    batch : int, optional
        Handed on to `make`.
    iterations, warmup : int
        How many iterations are recorded, and how many of them go before. The last one is the trace; what it holds
        from the one before is known from that one, so both must do the same (with one recorded iteration, that is not
        checked).
    chunk : int or str, optional
        Bytes, or a text such as `"64MiB"`: calls on all tensors of an optimizer (`_foreach_*`, `_fused_*`) run, and are
        recorded, as ops that touch at most so much each, or one parameter's tensors; see `foreach_chunks.pieces`. Every
        bit comes out as unsplit. A plan for such a trace is one for steps that run split in the same way.
    assume : str, optional
        On `meta`, of sizes that follow from what the net computes (which expert takes a token, which boxes are kept):
        `balanced`, each class as often and half of each mask; `worst`, all the same class and all of each mask. `none`:
        nothing is assumed at all, and whoever asks for a value that nobody knows is refused. Left out, sizes are
        refused, and a number of which nothing is known is taken to be 1.
    name : str
        Of the trace; by default that of `make`.

    Returns
    -------
    Trace
        Ops in the order of their dispatch, over storages: sizes, shapes, dtypes, kinds, reads and writes, what is
        random, flops by PyTorch's formulas, bytes moved, and of each op its module and its phase (an attribute).
        Durations are measured on `cuda`, see `Stopwatch`; elsewhere they are left to the machine's roofline.

    Raises
    ------
    WorkloadError
        The workload cannot be recorded: `make` or `step` fails, does nothing, or does other things in each iteration.

    Warns
    -----
    UserWarning
        What a reader of the trace should know; see `Captured.notes` and `Captured.assumptions`.

    Notes
    -----
    Recording on `cuda` was tried with doubles of PyTorch's events only, never on hardware.

    O(ops). Buffers are freed when the last reference is dropped, as PyTorch's allocator sees it. Garbage is collected
    between iterations only. What an iteration keeps for good ends with it.

    PyTorch switches `torch.autocast("cuda")` off where there is no GPU. In `make` and `step` it stays on, and in a file
    that `load` reads; one that was made before, as a decorator at the top of a module, casts nothing.

    Ops of threads that the step starts are not seen (a mode is one thread's, and that of its backward pass); what they
    make is, where it is used.

    A dispatch mode changes what PyTorch does, though no bit of what comes out: the engine adds gradients up out of
    place, and those of indexing, gathering and sorting scatter so. The trace has both in place, as without a mode. Left
    as they are: attention's unfused form adds its mask, `binary_cross_entropy_with_logits` its terms out of place;
    `prod`, `cumprod` and the maximum of all have other gradients.

    Examples
    --------
    >>> import torch
    >>> def make(batch=8):
    ...     net = torch.nn.Linear(4, 2)
    ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ...     def step():
    ...         net(torch.randn(batch, 4)).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     return step
    >>> trace = capture(make)
    >>> trace.ops.name[:3]
    ('randn.default', 'addmm.default', 'sum.default')
    """
    captured = record(
        make, device, batch=batch, iterations=iterations, warmup=warmup, chunk=chunk, assume=assume, name=name
    )
    for note in (*captured.notes, *notes_of(captured.assumptions)):
        warnings.warn(f"{captured.trace.name}: {note}", stacklevel=3)
    return captured.trace


@strict
def record(  # noqa: PLR0913  public: a keyword for each choice of a capture
    make: Make | TrainingScript,
    device: str = "meta",
    *,
    batch: int | None = None,
    iterations: int = 2,
    warmup: int = 1,
    chunk: int | str | None = None,
    assume: str | None = None,
    name: str = "",
    timed: bool = False,
) -> Captured:
    """Record a training step as `capture` does; return all iterations, and what is to be said of them.

    `timed`: measure on `cpu` as well how long ops take, as on `cuda` they always are.
    """
    one_of("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise WorkloadError("device: 'cuda': PyTorch sees no CUDA device here; 'meta' needs none")
    at_least(1, iterations=iterations, batch=batch)
    at_least(0, warmup=warmup)
    if isinstance(make, TrainingScript):
        make.check(device, batch)
    whole = isinstance(make, TrainingScript)
    with alone(CaptureMode.alone), _environment(device, in_bytes(chunk), assume, timed, whole_script=whole) as mode:
        if isinstance(make, TrainingScript):
            return recorded(make, mode, warmup, iterations, name)
        with mode:
            step = made(make, device, batch)
        bounds = [_iteration(mode, step, k) for k in range(warmup + iterations)]
        return cut(
            mode.recorder,
            bounds,
            name or name_of(make),
            alike=iterations > 1,
            assumptions=mode.assumptions.made,
        )


@contextmanager
def _environment(
    device: str, chunk: int | None, assume: str | None, timed: bool, *, whole_script: bool = False
) -> Iterator[CaptureMode]:
    """The execution environment of a step that is recorded: the device, hooks, no garbage collection in the middle."""
    mode = CaptureMode(device, StepContext(), stopwatch(device, host=timed), chunk, assume)
    with ExitStack() as environment:
        if device == "meta":
            environment.enter_context(fake_cuda())
        if device != "cpu":
            environment.enter_context(
                redirect_device(device, mode.step_context, mode.values, whole_script=whole_script)
            )
        environment.enter_context(refusing())
        environment.enter_context(mode.step_context.followed())
        if gc.isenabled():
            gc.disable()
            environment.callback(gc.enable)
        if not gc.get_freeze_count():  # what is there already is no garbage of the step: PyTorch is a tenth of a second
            gc.collect()
            gc.freeze()
            environment.callback(gc.unfreeze)
        yield mode


def _iteration(mode: CaptureMode, step: Step, k: int) -> tuple[int, int]:
    gc.collect()
    lo = mode.recorder.begin()
    with blamed(f"iteration {k}"), uncompiled(), mode:
        step()
    hi = mode.recorder.end()
    if lo == hi:
        raise WorkloadError(
            f"iteration {k}: no op ran on {mode.device}; a step trains for one iteration when it is called, "
            "on the device that make(device=...) is given, or on none by name"
        )
    return lo, hi
