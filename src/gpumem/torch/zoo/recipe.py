"""What a net of the zoo is, and the training step that is recorded of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpumem.torch.capture.capture import record
from gpumem.torch.capture.captured import Captured
from gpumem.torch.internals import torch
from gpumem.torch.step.workload import Step, WorkloadError

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor of the batch: its shape without the batch; whole numbers below a bound, or else numbers in [0, 1)."""

    shape: tuple[int, ...]
    below: int = 0

    def __call__(self, batch: int, device: str) -> torch.Tensor:
        """Make one: on `meta` an empty one, which is one op."""
        shape = (batch, *self.shape)
        if device == "meta":
            return torch.empty(shape, dtype=torch.int64 if self.below else None, device=device)
        return torch.randint(self.below, shape, device=device) if self.below else torch.rand(shape, device=device)


@dataclass(frozen=True, slots=True)
class Net:
    """A net to train.

    Parameters
    ----------
    build : callable
        Returns the module, with random weights.
    inputs : tuple of Input
        The tensors of a batch.
    loss : callable
        `loss(module, *tensors)`, a number.
    batch : int
        Where none is asked for.
    optimizer : str
        The same.
    needs : tuple of str
        Libraries.
    """

    build: Callable[[], torch.nn.Module]
    inputs: tuple[Input, ...]
    loss: Callable[..., torch.Tensor]
    batch: int
    optimizer: str = "sgd"
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """A net with its optimizer and batch, as a name like `resnet50_224_b64_adam` says it.

    Parameters
    ----------
    name : str
    net : Net
    batch : int
    optimizer : str
        `sgd` (learning rate 0.1, momentum 0.9) or `adam` (1e-4).
    foreach : bool
        Whether one op works on all parameters, PyTorch's default on GPUs, or one at a time.
    warmup, iterations : int
        How many iterations go before, and how many are recorded.
    """

    name: str
    net: Net
    batch: int
    optimizer: str
    foreach: bool = False
    warmup: int = 1
    iterations: int = 2

    def make(self, batch: int | None = None, device: str = "meta") -> Step:
        """Build net and optimizer; return the step: the batch arrives, forward, loss, backward, update."""
        net, batch = self.net, batch or self.batch
        module = self._build(device)
        optimizer = self._optimizer(module)

        def step() -> None:
            tensors = [values(batch, device) for values in net.inputs]
            loss = net.loss(module, *tensors)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def record(self, device: str = "meta") -> Captured:
        """Record it; see `gpumem.torch.record`."""
        return record(
            self.make, device, batch=self.batch, warmup=self.warmup, iterations=self.iterations, name=self.name
        )

    def _build(self, device: str) -> torch.nn.Module:
        try:
            with torch.device(device):
                return self.net.build().train()
        except (NotImplementedError, WorkloadError):  # it asks for values on the way, which `meta` has not
            with torch.device("cpu"):
                return self.net.build().train().to(device)

    def _optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, foreach=self.foreach)
        return torch.optim.Adam(module.parameters(), lr=1e-4, foreach=self.foreach)
