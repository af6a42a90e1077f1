"""A step on another device than it names: what is made without saying where, or on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from gpumem.torch.internals import TorchFunctionMode, device_constructors, hidden_from_modes, torch
from gpumem.torch.internals.redirected import BACKWARD, COUNTED, DRAWN, LOADED, PARAMETER, original, redirected
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.workload import WorkloadError
from gpumem.torch.values.known import is_small
from gpumem.torch.values.known_values import KnownValues

ON_GPU: dict[Any, Callable[[int], Any]] = {  # what is asked of a tensor without a device, and answered by its GPU
    torch.Tensor.is_cuda.__get__: lambda index: True,
    torch.Tensor.device.__get__: partial(torch.device, "cuda"),
    torch.Tensor.get_device: int,
}


@contextmanager
def redirect_device(
    device: str, step_context: StepContext, values: KnownValues | None = None, *, whole_script: bool = False
) -> Iterator[None]:
    """Let a step run on a device; what loaders draw by chance, indices and seeds, stays on the host as always.

    A whole script moves its batches there itself: what it makes without a device is on the host, but for parameters.
    """
    mode = Elsewhere(device, step_context, values, None if whole_script else device)
    stand_ins: dict[str, Any] = {
        **{name: mode.hosted(original(name)) for name in (*DRAWN, COUNTED)},
        "torch.set_default_device": mode.set_default if whole_script else lambda device: None,
        BACKWARD: mode.kept(original(BACKWARD)),
    }
    if whole_script:
        stand_ins[PARAMETER] = mode.placed(original(PARAMETER))
    if device == "meta":
        stand_ins[LOADED] = _in_this_process(original(LOADED))
    with redirected(stand_ins.items()), mode:
        yield


def _in_this_process(begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def called(loader: Any) -> Any:
        with patch.multiple(loader, num_workers=0, timeout=0, pin_memory=False):
            return begin(loader)

    return called


FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}


def _asked(data: Any) -> Any:
    """Numbers in lists, where they are tensors: PyTorch asks each for its value, where it is on a GPU."""
    if isinstance(data, (list, tuple)):
        return [_asked(x) for x in data]
    return data.tolist() if isinstance(data, torch.Tensor) and data.is_meta else data


class Elsewhere(TorchFunctionMode):
    """As `with torch.device(...)`, but `cuda` means that device too, and optimizers keep their counters on the host.

    (They do so on a GPU: a default device is what no training script sets, tensors are sent there one by one.)
    `default`: where tensors are made that are told no device; None leaves that to PyTorch.
    """

    def __init__(self, device: str, step_context: StepContext, values: KnownValues | None, default: str | None) -> None:
        super().__init__()
        self.default = None if default is None else torch.device(default)
        self.values = values  # what is known of tensors, where they have no values
        self.device, self.step_context = torch.device(device), step_context
        self.index: int | None = None  # of the GPU that the step names
        self.on_host = False

    def __torch_function__(  # noqa: C901  one case for each function of PyTorch that asks for a device
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in ON_GPU and args[0].is_meta and self.device.type == "meta":
            return ON_GPU[func](self.index or 0)
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            self._named(args[1] if len(args) > 1 else kwargs.get("device"))
            return args[0].to(self.device)
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        args = tuple(self._meant(x) for x in args)
        kwargs = {name: self._meant(x) for name, x in kwargs.items()}
        if self.step_context.optimizing or self.on_host:
            return func(*args, **kwargs)
        if func is torch.Tensor.__setitem__ and args[0].is_meta and isinstance(args[2], (bool, int, float)):
            with hidden_from_modes():  # as on a GPU, whose number is on the host: else it would be a tensor there
                args = (*args[:2], torch.tensor(args[2], dtype=args[0].dtype, device="cpu"))
        if func in FROM_DATA and self.device.type == "meta":
            args = tuple(_asked(x) if isinstance(x, (list, tuple)) else x for x in args)
        if self.device.type == "meta":  # the host's memory is the host's, pinned or not
            if func is torch.Tensor.pin_memory:
                return args[0]
            if func is torch.Tensor.record_stream:
                return None
            kwargs.pop("pin_memory", None)
        if self.default is not None and kwargs.get("device") is None and func in device_constructors():
            kwargs["device"] = self.default
        made = func(*args, **kwargs)
        if self.values is not None and func in FROM_DATA and isinstance(made, torch.Tensor) and made.is_meta:
            self._given(made, args, kwargs)
        return made

    def _given(self, made: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note what a tensor holds that was made of numbers: PyTorch makes it without telling a mode."""
        data = next((x for x in args if not isinstance(x, torch.Tensor)), kwargs.get("data"))
        assert self.values is not None
        if is_small(made) and data is not None and not isinstance(data, torch.Tensor):
            with hidden_from_modes():
                self.values.given(made, torch.tensor(data, dtype=made.dtype, device="cpu"))

    def set_default(self, device: Any) -> None:
        """As `torch.set_default_device`."""
        self.default = None if device is None else torch.device(self._meant(device))

    def placed(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Let parameters be made on the device, whatever they are made of.

        So a model takes no memory of the host, and moving it changes nothing: to a device of another kind PyTorch moves
        parameters by making others, of which an optimizer or a tied layer would not know.
        """

        def called(cls: type, data: torch.Tensor | None = None, requires_grad: bool = True) -> Any:
            if data is None:
                data = torch.empty(0, device=self.device)
            elif type(data) in (torch.Tensor, torch.nn.Parameter) and data.device.type == "cpu":
                data = data.detach().to(self.device)
            return make(cls, data, requires_grad)

        return called

    def hosted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Let what a function makes be on the host."""

        @wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            with patch.object(self, "on_host", True):
                return method(*args, **kwargs)

        return called

    def kept(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Let a function run under this mode, which `Tensor.backward` takes off: functions and checkpoints of the user
        make tensors in there, too."""

        @wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return method(*args, **kwargs)

        return called

    def _meant(self, x: Any) -> Any:
        if isinstance(x, torch.device):
            there = str(x.type) == "cuda"
        else:
            there = isinstance(x, str) and x.partition(":")[0] == "cuda"
        if there:
            self._named(x)
        return self.device if there else x

    def _named(self, device: Any) -> None:
        """Refuse a second GPU."""
        index = device if isinstance(device, int) else (torch.device(device or "cuda").index or 0)
        if self.index not in (None, index):
            raise WorkloadError(
                f"cuda:{self.index} and cuda:{index}: one device is recorded; put the model on one, or record its parts"
            )
        self.index = index
