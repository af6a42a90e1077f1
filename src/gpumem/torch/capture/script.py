"""A whole training script, run as it is until its iterations are known."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

from gpumem.torch.capture.capture_mode import CaptureMode
from gpumem.torch.capture.captured import Captured
from gpumem.torch.capture.hands_off import hands_off
from gpumem.torch.capture.iterations import Iterations
from gpumem.torch.internals import register_module_forward_pre_hook, torch
from gpumem.torch.step.refusals import uncompiled
from gpumem.torch.step.workload import WorkloadError, all_refusals, blamed, line_of

# How often a script may catch the exception that ends it, before a trace function ends it at its next line: not tuned.
SWALLOWED = 10


class TrainingScript:
    """A training script with its arguments, for `capture` and `fit` in place of `make`.

    Parameters
    ----------
    path : str
        Of the file.
    args : sequence of str
        What stands after it on a command line.

    Notes
    -----
    It runs as `python FILE ARGS` runs it, on a GPU that is not there: its folder is where it imports from first, and
    `__name__` is `"__main__"`. An iteration is from one optimizer step to the next, or with several optimizers one
    period of the pattern in which they step. When three are through, it is ended where it stands. Data are loaded for
    real, in this process. `torch.save` and its like do nothing, trackers of experiments are not told.

    Tensors that are made without a device are on the host, as always; parameters of modules are on the GPU at once.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from gpumem.torch import capture
    >>> text = '''
    ... import sys, torch
    ... net = torch.nn.Linear(4, 2).to("cuda")
    ... optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ... for batch in torch.ones(10, int(sys.argv[1]), 4):
    ...     net(batch.to("cuda")).sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ... '''
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "train.py")
    ...     _ = path.write_text(text)
    ...     trace = capture(TrainingScript(str(path), ["8"]))
    >>> trace.name, trace.ops.name[:2]
    ('train', ('_to_copy.default', 'addmm.default'))
    """

    def __init__(self, path: str | Path, args: Sequence[str] = ()) -> None:
        self.path, self.args = str(path), [*args]

    @property
    def __name__(self) -> str:
        """What its trace is called."""
        return Path(self.path).stem

    def check(self, device: str, batch: int | None) -> None:
        """Refuse what a script cannot be asked for, or one that is not there."""
        if device != "meta":
            raise WorkloadError(
                f"{self.path}: device {device!r}: a script runs on 'meta'; a step by make runs on others"
            )
        if batch is not None:
            raise WorkloadError(f"{self.path}: batch {batch}: a script has its own arguments; say it in them")
        if not Path(self.path).is_file():
            raise WorkloadError(f"{self.path!r:.80}: no such file; expected a Python script")

    def __repr__(self) -> str:
        return f"TrainingScript({self.path!r}, {self.args!r})"


class Stopped(BaseException):
    """Ends a script from within; no error, so that `except Exception` lets it pass."""


def recorded(script: TrainingScript, mode: CaptureMode, warmup: int, iterations: int, name: str) -> Captured:
    """Run a script until some iterations are through; return what was recorded of them."""
    stop = _Stop()
    recorded = Iterations(mode, warmup, iterations, name=name or script.__name__, stop=stop)
    with all_refusals() as refusals, stop.insisting(), hands_off(stop), recorded.followed(), _as_main(script) as module:
        _run(Path(script.path), module, mode, stop)
    if stop.why:
        raise WorkloadError(f"{script.path}: {stop.why}")
    if recorded.captured is None:
        steps = len(recorded.order)
        more = (
            f"it has to train for {recorded.count} iterations" if steps else "it has to train with one of torch.optim"
        )
        if refusals:  # the script went on without what it could not do
            more = f"it caught an error: {refusals[0]}"
        raise WorkloadError(f"{script.path}: ended after {steps} optimizer step{'s' * (steps != 1)}; {more}")
    return recorded.captured


def _run(path: Path, module: ModuleType, mode: CaptureMode, stop: _Stop) -> None:
    """Run a script; once it was stopped, how it ends does not matter any more."""
    try:
        with blamed(str(path)), uncompiled(), mode:
            next(_lines(path, module))
    except (Stopped, WorkloadError):
        if not stop.is_over:
            raise


def _lines(path: Path, module: ModuleType) -> Iterator[None]:
    """Run the lines of a script, to its end or to where it ends itself in good order.

    A generator, as that has its own stack of exceptions that are being handled: ended in the middle of a handler, a
    function of the script's leaves its own there.
    """
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    yield


@contextmanager
def _as_main(script: TrainingScript) -> Iterator[ModuleType]:
    """What a script finds as if it had been started by itself, and what it may leave otherwise than it was."""
    module = ModuleType("__main__")
    path = Path(script.path).absolute()
    module.__file__, module.__loader__ = str(path), SourceFileLoader("__main__", str(path))
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    with ExitStack() as environment:
        environment.callback(torch.set_grad_enabled, gradients)
        environment.callback(torch.set_default_dtype, dtype)
        environment.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])  # what it imported stays
        sys.modules["__main__"] = module
        begin = [str(path.resolve().parent), *sys.path]
        with patch.object(sys, "argv", [script.path, *script.args]), patch.object(sys, "path", begin):
            yield module


class _Stop:
    """Ends a script, with a reason where something is wrong, and goes on to do so where it catches that."""

    def __init__(self) -> None:
        self.is_over, self.why, self.times = False, "", 0

    def __call__(self, why: str = "") -> NoReturn:
        if not self.is_over and why:
            place = line_of(traceback.extract_stack())
            self.why = f"{why} ({place})" if place else why
        self.is_over = True
        self.times += 1
        if self.times > SWALLOWED:
            self._at_the_next_line(sys._getframe(1))
        raise Stopped

    @contextmanager
    def insisting(self) -> Iterator[None]:
        """End the script again at the next module that it calls."""
        tracing = sys.gettrace()
        try:
            with register_module_forward_pre_hook(self._repeat):
                yield
        finally:
            if self.times > SWALLOWED:
                sys.settrace(tracing)

    def _repeat(self, module: torch.nn.Module, args: Any) -> None:
        if self.is_over:
            self()

    def _at_the_next_line(self, frame: FrameType | None) -> None:
        """Let the script's own functions end at the next line that they run, so also where they have caught that."""

        def end(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":  # who raises at another event takes this function off
                raise Stopped
            return end

        while frame is not None and frame.f_code is not _run.__code__:
            if line_of([traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, "")]):
                frame.f_trace = end
            frame = frame.f_back
        sys.settrace(lambda *event: None)
