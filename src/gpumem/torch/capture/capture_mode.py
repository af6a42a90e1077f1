"""The mode of a capture: ops run as they are, or on no device at all, and are recorded."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from gpumem.torch.capture.op_recorder import OpRecorder
from gpumem.torch.internals import no_function_modes
from gpumem.torch.step.op_mode import OpMode
from gpumem.torch.step.ops import Call
from gpumem.torch.step.refusals import without_values
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.storages import Storages
from gpumem.torch.step.timing import Timed
from gpumem.torch.step.workload import line_of
from gpumem.torch.values.answers import Answers
from gpumem.torch.values.assumed import Assumptions
from gpumem.torch.values.known import META
from gpumem.torch.values.known_values import KnownValues


class CaptureMode(OpMode):
    """Records what runs under it.

    Parameters
    ----------
    device : str
        Type of the device whose memory is meant.
    step_context : StepContext
        Tells where in the step an op stands.
    timed : Timed, optional
        Runs the ops that are recorded, and says at the end of an iteration how long they took.
    chunk : int, optional
        Calls on lists of tensors are split into ops that touch at most so many bytes each, see `pieces`.
    assume : str, optional
        See `Assumptions`.
    """

    alone = "a capture"

    def __init__(
        self,
        device: str,
        step_context: StepContext,
        timed: Timed | None = None,
        chunk: int | None = None,
        assume: str | None = None,
    ) -> None:
        super().__init__(device, chunk)
        self.step_context = step_context
        storages = Storages()
        self.recorder = OpRecorder(storages, device, step_context, timed)
        storages.on_reaped = self.recorder.on_reaped
        self.assumptions = Assumptions(assume)
        self.values = KnownValues(storages) if device == META else None
        self.answers = None if self.values is None else Answers(self.values, self.assumptions, self._place)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with no_function_modes():  # or the mode that chooses the device is asked whenever we ask a tensor for its size
            return super().__torch_dispatch__(func, types, args, kwargs)

    def op(self, call: Call) -> Any:
        """Run an op of the device and write it down; return what it returns."""
        self.recorder.before(call)
        call.result = self._do(call) if self.answers is None else self._without(call, self.answers)
        self.recorder.after(call)
        if self.answers is not None:
            self.answers.follow(call)
        return call.result

    def _do(self, call: Call) -> Any:
        func, args, kwargs, timed = call.func, call.args, call.kwargs, self.recorder.timed
        return timed(func, args, kwargs) if timed and self.recorder.recording else func(*args, **kwargs)

    def _without(self, call: Call, answers: Answers) -> Any:
        """Run an op on tensors that have no values; what it tells the host is what is known of them, or assumed."""
        answer = answers.answer(call)
        return answer if answer is not None else without_values(call.func, call.args, call.kwargs, self._module)

    @property
    def _module(self) -> str:
        return self.step_context.module or "the step"

    def _place(self) -> str:
        line = line_of(traceback.extract_stack())
        return f"{self._module}, {line}" if line else self._module
