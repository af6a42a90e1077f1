"""What a script that is only looked at leaves alone: prompts, files of checkpoints, trackers of experiments."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

from gpumem.torch.capture.one_gpu import Idle
from gpumem.torch.internals.redirected import SAVED, redirected

ENVIRONMENT = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "DISABLE_MLFLOW_INTEGRATION": "TRUE"}
# Of modules, if a script imports them: what writes checkpoints, or tells a tracker.
NOT_CALLED = {
    "safetensors.torch": ("save_file", "save_model"),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "transformers.trainer": ("Trainer.save_model", "Trainer._save_checkpoint"),
    "accelerate.accelerator": ("Accelerator.save", "Accelerator.save_model", "Accelerator.save_state"),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    **dict.fromkeys(("torch.utils.tensorboard.writer", "torch.utils.tensorboard", "tensorboardX"), ("SummaryWriter",)),
    "mlflow": (
        *("set_tracking_uri", "set_experiment", "start_run", "end_run", "autolog", "log_param", "log_params"),
        *("log_metric", "log_metrics", "log_artifact", "log_artifacts"),
    ),
}


class Nothing(Idle):
    """What stands in for a function or a class that is not called: it takes everything, and does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


@contextmanager
def hands_off(stop: Callable[[str], NoReturn]) -> Iterator[None]:
    """Let a script neither write checkpoints nor tell trackers; `stop` it with the reason where it asks for input."""

    def asks(*args: Any, **kwargs: Any) -> NoReturn:
        stop("asks for input, and nobody answers")

    with (
        patch.dict(os.environ, ENVIRONMENT),
        patch("builtins.input", asks),
        patch("getpass.getpass", asks),
        patch.object(sys, "stdin", _Unanswered(asks)),
        redirected([(SAVED, Nothing)]),
        warnings.catch_warnings(),
        ExitStack() as environment,
    ):
        warnings.filterwarnings("ignore", "This DataLoader will create")  # it creates no workers here
        finder = _Finder(environment)
        for name in NOT_CALLED:
            if name in sys.modules:
                finder.stand_in(sys.modules[name])
        with patch.object(sys, "meta_path", [finder, *sys.meta_path]):
            yield


class _Unanswered(io.TextIOBase):
    """Standard input that ends whoever reads it."""

    def __init__(self, asks: Callable[..., NoReturn]) -> None:
        self.asks = asks

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        self.asks()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        self.asks()

    @property
    def buffer(self) -> Any:
        self.asks()


class _Finder(MetaPathFinder):
    """Finds modules as they are found without it; those of the table have `Nothing` in them once they are run."""

    def __init__(self, environment: ExitStack) -> None:
        self.environment = environment
        self.looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in NOT_CALLED or self.looking:
            return None
        with patch.object(self, "looking", True):
            spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.stand_in(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def stand_in(self, module: ModuleType) -> None:
        """Let `Nothing` stand in for what the table says, as far as this version of the module has it."""
        for where in NOT_CALLED[module.__name__]:
            owner, _, name = where.rpartition(".")
            target = getattr(module, owner, None) if owner else module
            if hasattr(target, name):
                self.environment.enter_context(patch.object(target, name, Nothing))
