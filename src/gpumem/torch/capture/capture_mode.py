"""The mode of a capture: ops run as they are, or on no device at all, and are recorded."""

from __future__ import annotations

import traceback
from typing import Any

from gpumem.torch.capture.op_recorder import OpRecorder
from gpumem.torch.internals import torch
from gpumem.torch.step.op_mode import OpMode
from gpumem.torch.step.ops import Call
from gpumem.torch.step.refusals import without_values
from gpumem.torch.step.step_context import Scene
from gpumem.torch.step.storages import Storages
from gpumem.torch.step.timing import Timed
from gpumem.torch.step.workload import line_of

aten = torch.ops.aten
FINITE = "_amp_foreach_non_finite_check_and_unscale_.default"  # a scaler asks: are gradients not finite?
# what is asked of these is whether all is well; of others, whether it is not
TRUE = frozenset({"all", "isfinite", "_is_all_true"})


class CaptureMode(OpMode):
    """Records what runs under it.

    Parameters
    ----------
    device : str
        Type of the device whose memory is meant.
    scene : Scene
        Tells where in the step an op stands.
    timed : Timed, optional
        Runs the ops that are recorded, and says at the end of an iteration how long they took.
    chunk : int, optional
        Calls on lists of tensors are split into ops that touch at most so many bytes each, see `pieces`.
    """

    alone = "a capture"

    def __init__(self, device: str, scene: Scene, timed: Timed | None = None, chunk: int | None = None) -> None:
        super().__init__(device, chunk)
        self.scene = scene
        storages = Storages()
        self.recorder = OpRecorder(storages, device, scene, timed)
        storages.buried = self.recorder.buried

    def op(self, call: Call) -> Any:
        """Run an op of the device and write it down; return what it returns."""
        self.recorder.before(call)
        asked = call.kind.blocks and self.device == "meta"
        call.result = self._answer(call.name, call.args[0]) if asked else self._do(call)
        self.recorder.after(call)
        return call.result

    def _do(self, call: Call) -> Any:
        func, args, kwargs, timed = call.func, call.args, call.kwargs, self.recorder.timed
        if self.device != "meta":
            return timed(func, args, kwargs) if timed and self.recorder.recording else func(*args, **kwargs)
        if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            self._asks("a copy on the host")
            return torch.zeros_like(args[0], dtype=kwargs.get("dtype"), device="cpu")
        if func is aten.copy_.default and args[0].device.type == "cpu":
            self._asks("a copy on the host")
            return args[0].zero_()
        return without_values(func, args, kwargs, self.scene.module or "the step")

    def _answer(self, name: str, asked: torch.Tensor) -> Any:
        """Answer what would need values: nothing is known of them here, so all is well, and numbers are 0."""
        source = self.recorder.source.get(self.recorder.block_of(asked), "")
        if source == FINITE:
            return 0.0
        self._asks(source or name)
        if name.startswith("equal") or asked.dtype == torch.bool:
            return source.partition(".")[0] in TRUE
        return 0j if asked.dtype.is_complex else 0.0 if asked.dtype.is_floating_point else 0

    def _asks(self, what: str) -> None:
        place = line_of(traceback.extract_stack())
        self.recorder.asked[f"{what} in {self.scene.module or 'the step'}" + (f", {place}" if place else "")] = None
