"""How many bytes a call will make is known before it runs, and remembered by the shapes of its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import managed
from gpumem.torch.run.managed import Managed
from gpumem.torch.run.output_sizes import OutputSizePredictor
from gpumem.torch.step.ops import call_of, tensors
from tests.pytorch.nets import NETS, OPTIMIZERS, data
from tests.pytorch.small_runs import HOW, KIB, QUICK


def predictions(run: Managed) -> int:
    return len(run.mode.predictor.fresh)


def test_predictions_are_remembered_by_shapes_and_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(8)
    with managed("64KiB", **HOW) as run:
        for k in range(30):
            torch.full((k + 1,), 1.0)
            x.mul(1.0 + k)
        whole = predictions(run)
        for k in range(30):
            x.mul(2.5 + k)
        assert predictions(run) == whole
        torch.full((3,), 1)
        torch.full((3,), True)
        assert predictions(run) == whole + 2
        monkeypatch.setattr("gpumem.torch.run.output_sizes.KNOWN", 10)
        for k in range(40):
            torch.full((100 + k,), 1.0)
        assert predictions(run) <= whole + 3


class Compared(TorchDispatchMode):
    """Holds what each op makes against what was predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.predicted = OutputSizePredictor("cpu")
        self.wrong: list[tuple[str, int, int]] = []
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = call_of(func, args, kwargs or {}, "cpu")
        told = self.predicted(func, args, kwargs or {}) if call else 0
        result = func(*args, **(kwargs or {}))
        if call:
            old = {x.untyped_storage()._cdata for x in call.operands}
            storages = [x.untyped_storage() for x in tensors(result if isinstance(result, tuple) else (result,), "cpu")]
            made = {s._cdata: s.nbytes() for s in storages if s._cdata not in old}
            self.ops += 1
            if told != sum(made.values()):
                self.wrong.append((str(func), told, sum(made.values())))
        return result


IMAGES = {3: torch.ones(2, 3, 8), 4: torch.ones(2, 3, 8, 6), 5: torch.ones(2, 3, 4, 6, 2)}


SAMPLED: list[tuple[int, dict[str, Any]]] = [
    *((dims, {"mode": mode}) for dims in IMAGES for mode in ("nearest", "nearest-exact")),
    *((dims, {"mode": mode}) for dims, mode in ((3, "linear"), (4, "bilinear"), (4, "bicubic"), (5, "trilinear"))),
    *((4, {"mode": mode, "antialias": True}) for mode in ("bilinear", "bicubic")),
]


@pytest.mark.parametrize(("dims", "how"), SAMPLED)
def test_what_an_image_takes_that_is_sampled_anew_is_known(dims: int, how: dict[str, Any]) -> None:
    with Compared() as compared:
        for scale in (0.5, 3.0):
            torch.nn.functional.interpolate(IMAGES[dims], scale_factor=scale, **how)
        if dims > 3:
            grid = torch.zeros(2, *(5,) * (dims - 2), dims - 2)
            torch.nn.functional.grid_sample(IMAGES[dims], grid, align_corners=False)
    assert compared.ops >= 2 and not compared.wrong


@pytest.mark.parametrize("net", NETS)
def test_what_ops_will_make_is_known_before_they_run(net: str) -> None:
    torch.manual_seed(0)
    model = NETS[net]()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    state = torch.get_rng_state()
    with Compared() as mode:
        for _ in range(2):
            x, y = data(net, 3)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert mode.ops > 50
    assert [wrong for wrong in mode.wrong if "mkldnn_rnn_layer" not in wrong[0]] == []  # its workspace is a secret
    torch.set_rng_state(state)


@pytest.mark.parametrize("net", ["resnet", "gpt", "unet"])
def test_the_first_iteration_keeps_a_limit_of_bytes_too(net: str) -> None:
    torch.manual_seed(0)
    model = NETS[net]()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with managed(32 * KIB if net != "unet" else 26 * KIB, **QUICK) as run:
        for _ in range(5):
            x, y = data(net, 3)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = run.report()
    assert max(row.peak for row in report.iterations) <= report.limit
    assert report.iterations[0].evictions and report.iterations[-1].state == "planned"
