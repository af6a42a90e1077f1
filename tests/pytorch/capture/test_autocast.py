"""Autocast on meta: against PyTorch's own kernels on fake CUDA tensors, against its lists, against CPU's in a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gpumem.torch import WorkloadError, capture, load, record
from gpumem.torch.capture import autocast
from tests.pytorch.fakes import Log, Seen, faked, on_meta

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
CALLS = """
x @ y
x @ h.T
x @ v
d @ y.double()
torch.addmm(w, x, y)
torch.bmm(x.unsqueeze(0), y.unsqueeze(0))
torch.einsum("ab,bc->ac", x, y)
torch.linalg.multi_dot([x, y, y.T])
F.conv1d(image.squeeze(0), torch.randn(4, 9, 3))
F.conv2d(image, torch.randn(4, 2, 3, 3), torch.randn(4), padding="same")
F.conv_transpose2d(image, torch.randn(2, 4, 3, 3))
F.prelu(x, v)
torch.acos(h)
torch.exp(h)
torch.log(h)
torch.reciprocal(h)
torch.rsqrt(h)
torch.sum(h)
torch.prod(h)
torch.norm(h)
h.norm(2, 0)
h**2
h ** v
2.0**h
h.sum(0)
h.cumsum(0)
h.sum(0, dtype=torch.float64)
labels.sum()
h.softmax(-1)
x.to(torch.bfloat16).softmax(-1)
h.softmax(-1, dtype=torch.float16)
h.log_softmax(-1)
F.layer_norm(h, (6,), v)
F.rms_norm(h, (6,))
F.group_norm(h, 2)
F.softplus(h)
torch.linalg.vector_norm(h, dim=1)
torch.linalg.matrix_norm(h)
F.mse_loss(h, x)
F.l1_loss(h, h)
F.smooth_l1_loss(h, h)
F.cross_entropy(h, labels)
F.binary_cross_entropy_with_logits(h, x)
F.cosine_similarity(h, h)
F.interpolate(image.to(h), scale_factor=2)
torch.addcmul(h, x, x)
torch.atan2(h, x)
torch.dot(v.to(h), v)
torch.tensordot(h, y, 1)
F.bilinear(h, x, torch.randn(3, 6, 6))
torch.scatter_add(x, 0, torch.zeros(4, 6, dtype=torch.long), h)
F.dropout(h, 0.1)
h + x
torch.cat([h, x])
F.gelu(h)
F.max_pool2d(image.to(h), 2)
"""
if hasattr(torch.linalg, "matrix_sqrth"):
    CALLS += "torch.linalg.matrix_sqrth(y @ y.T)\ntorch.linalg.matrix_sqrth(h @ h.T)\n"
if hasattr(torch.ops.aten, "_fused_rms_norm_backward") and not torch.backends.cuda.is_built():
    CALLS = CALLS.replace("F.rms_norm(h, (6,))\n", "")  # that kernel of GPUs is in builds for them only


def each(dtype: torch.dtype, seen: list[Seen]) -> Callable[[], Callable[[], None]]:
    """A step that makes all calls under autocast; what each does is written down."""

    def make() -> Callable[[], None]:
        def step() -> None:
            seen.clear()
            given = {"x": torch.randn(4, 6), "y": torch.randn(6, 5), "image": torch.randn(1, 2, 9, 9)}
            given |= {"h": torch.randn(4, 6, dtype=dtype), "d": torch.randn(4, 6, dtype=torch.float64)}
            given |= {"v": torch.randn(6), "w": torch.randn(5)}
            given |= {"labels": torch.zeros(4, dtype=torch.long), "torch": torch, "F": F}
            with torch.autocast("cuda", dtype=dtype):
                for call in CALLS.strip().splitlines():
                    with Log() as log:
                        eval(call, given)
                    seen.append(log.seen)

        return step

    return make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_op_is_cast_as_a_gpu_casts_it(dtype: torch.dtype) -> None:
    mine: list[Seen] = []
    theirs: list[Seen] = []
    capture(each(dtype, mine), iterations=1, warmup=0)
    faked(each(dtype, theirs))
    for call, found, wanted in zip(CALLS.strip().splitlines(), mine, theirs, strict=True):
        assert found == wanted, call


class Attention(nn.Module):
    """Words, attention by hand, layer norm, a feed-forward part and the words again."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.norm = nn.Embedding(11, 16), nn.Linear(16, 48), nn.LayerNorm(16)
        self.wide = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x.argmax(-1))
        q, k, v = self.qkv(h).chunk(3, -1)
        h = self.norm(h + (q @ k.transpose(-1, -2) / 4.0).softmax(-1) @ v)
        return (h + self.wide(h)) @ self.words.weight.t()


class Upwards(nn.Module):
    """Down and up again, with batch norm and a shortcut, as a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.last(torch.cat([h, self.up(self.down(h))], 1)).sigmoid().mean((2, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(), nn.Linear(8, 3)), (4, 6)),
    "attention": (Attention, (2, 5, 11)),
    "u-net": (Upwards, (2, 3, 8, 8)),
}


def forwards(name: str, dtype: torch.dtype, cuda: bool) -> Callable[[], Callable[[], object]]:
    """The forward pass and its loss; weights want no gradients, as fake CUDA tensors cannot have any."""
    build, shape = NETS[name]
    with torch.device("meta"):
        net = build().requires_grad_(False)

    def make() -> Callable[[], object]:
        if cuda:
            net._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device="cuda"))

        def step() -> object:
            x = torch.randn(shape)
            with torch.autocast("cuda", dtype=dtype):
                y = net(x)
                return F.cross_entropy(y.flatten(0, -2), torch.zeros(y.shape[:-1], dtype=torch.long).flatten())

        return step

    return make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NETS)
def test_a_net_is_cast_as_a_gpu_casts_it(name: str, dtype: torch.dtype) -> None:
    mine, theirs = on_meta(forwards(name, dtype, cuda=False)), faked(forwards(name, dtype, cuda=True))
    assert mine == theirs and any(str(dtype) in str(op) for op in mine)


def test_what_pytorch_refuses_is_refused() -> None:
    def make(call: Callable[[torch.Tensor], object]) -> Callable[[], Callable[[], None]]:
        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                call(torch.randn(4, 6))

        return lambda: step

    with pytest.raises(WorkloadError, match=r"binary_cross_entropy.*unsafe to autocast"):
        capture(make(lambda x: F.binary_cross_entropy(x.sigmoid(), x)))
    with pytest.raises(WorkloadError, match=r"autocast to torch.bfloat16: an operand is torch.float16"):
        capture(make(lambda x: torch.addcmul(x, x, x.half())))


def lists() -> dict[str, set[str]]:
    """The lists of the header, each as the set of its ops."""
    found: dict[str, set[str]] = {}
    for name, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)", HEADER.read_text()):
        ops = re.findall(r"_\((\w+)(?:, (\w+))?\)", body)
        found[name] = {".".join(filter(None, op)) for op in ops}
    return found


@pytest.mark.skipif(not HEADER.exists(), reason="PyTorch without its headers")
def test_the_lists_are_pytorchs() -> None:
    theirs = lists()
    assert theirs["PROMOTE"] == autocast.WIDEST
    known = {n.removeprefix("aten::") for n in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")}
    assert theirs["FP32"] == autocast.FULL & (known | theirs["FP32"])  # RMS norm since 2.12
    assert theirs["FP32_SET_OPT_DTYPE"] == autocast.FULL_RESULT & (known | theirs["FP32_SET_OPT_DTYPE"])
    others = autocast.FULL | autocast.FULL_RESULT | autocast.WIDEST | autocast.LEFT | set(autocast.OTHER_RESULT)
    others |= autocast.FULL_BESIDE
    assert known - others >= theirs["LOWER_PRECISION_FP"]
    assert {name.removeprefix("cudnn_") for name in known - others - theirs["LOWER_PRECISION_FP"]} <= {
        "convolution",
        "convolution_transpose",
        "_cudnn_rnn",
    }


def training(device: str, again: bool = False) -> Callable[[], Callable[[], None]]:
    """Linear layers, of which one is used three times: without a gradient first; and in two regions."""

    def make() -> Callable[[], None]:
        first, shared, last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        parameters = [p for layer in (first, shared, last) for p in layer.parameters()]

        def block(h: torch.Tensor) -> torch.Tensor:
            return shared(shared(h).relu())

        def step() -> None:
            h = torch.randn(4, 6)
            with torch.autocast(device, dtype=torch.bfloat16):
                h = first(h)
                with torch.no_grad():
                    shared(h)
                with torch.autocast(device, enabled=False):
                    h = h.float().tanh()
                h = checkpoint(block, h, use_reentrant=False) if again else block(h)
                loss = last(h).float().square()
            loss.mean().backward()
            with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
                loss = shared(shared(h.detach())).float().square()
            loss.mean().backward()
            for p in parameters:
                p.grad = None

        return step

    return make


def on_cpu(make: Callable[[], Callable[[], object]]) -> Seen:
    step = make()
    step()
    with Log() as log:
        step()
    return log.seen


@pytest.mark.parametrize("again", [False, True])
def test_weights_are_cast_once_a_region_and_gradients_back(again: bool) -> None:
    assert on_meta(training("cuda", again)) == on_cpu(training("cpu", again))


def test_outside_of_a_region_nothing_is_cast() -> None:
    def make() -> Callable[[], None]:
        net = nn.Linear(3, 2)

        def step() -> None:
            with torch.autocast("cuda", enabled=False):
                net(torch.randn(4, 3))
            net(torch.randn(4, 3))

        return step

    assert "_to_copy.default" not in capture(make).ops.name
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert nn.Linear(3, 2)(torch.randn(4, 3)).dtype == torch.float32


def test_a_region_at_the_top_of_a_file_stays_enabled(tmp_path: Path) -> None:
    file = tmp_path / "step.py"
    file.write_text(
        "import torch\nregion = torch.autocast('cuda', dtype=torch.bfloat16)\n"
        "@torch.autocast('cuda', dtype=torch.bfloat16)\ndef forward(net, x):\n    return net(x)\n"
        "def make():\n    net = torch.nn.Linear(6, 3)\n    def step():\n        forward(net, torch.randn(4, 6))\n"
        "        with region:\n            net(torch.randn(4, 6))\n    return step\n"
    )
    make = load(f"{file}:make")
    assert capture(make).ops.name.count("_to_copy.default") == 6
    assert capture(make, "cpu").ops.name.count("_to_copy.default") == 0


def test_a_scaler_scales_and_steps() -> None:
    def make() -> Callable[[], None]:
        net = nn.Linear(6, 3)
        optimizer = torch.optim.AdamW(net.parameters())
        scaler = torch.amp.GradScaler("cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(torch.randn(4, 6)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    found = record(make)
    names = found.trace.ops.name
    assert [(one.asked, one.answer) for one in found.assumptions] == [
        ("the value of _amp_foreach_non_finite_check_and_unscale_.default", "0.0")
    ]
    for op in ("_amp_foreach_non_finite_check_and_unscale_", "_foreach_addcdiv_", "_amp_update_scale_", "addmm"):
        assert any(name.startswith(op) for name in names), op
