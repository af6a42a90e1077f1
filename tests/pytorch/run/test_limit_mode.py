"""The mode of a run: ops that nobody has heard of, tensors of other kinds and transforms find their operands there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import LimitError, WorkloadError, managed
from tests.pytorch.own_ops import OWN
from tests.pytorch.small_runs import HOW, away, nested


@pytest.mark.parametrize("name", ["twice_like", "new_zeros", "count"])
def test_an_op_of_somebodys_own_finds_its_operand_there(name: str) -> None:
    op = getattr(OWN, name)
    expected = op(torch.ones(256))
    with managed("64KiB", **HOW) as run:
        x = torch.ones(256) * 1
        away(run, x)
        assert op(x) == expected if name == "count" else torch.equal(op(x), expected)


def test_an_assertion_finds_its_operand_there() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 1
        away(run, x)
        torch._assert_async(x[3])


def test_a_formula_that_reads_its_operand_again_finds_it_as_it_was() -> None:
    def gradients() -> list[Any]:
        torch.manual_seed(0)
        h, w = torch.randn(49 * 64, requires_grad=True), torch.randn(49 * 64)
        e = torch.randn(3, 64, requires_grad=True)
        b = h * 2
        b.view(49, 64)[torch.tensor([1, 5, 7])] = e
        (b * w).sum().backward()
        return [h.grad, e.grad]

    bare = gradients()
    with managed("1MiB", **HOW):
        assert all(map(torch.equal, gradients(), bare)) and bare[1].abs().sum() > 0


def test_a_gradient_that_a_hook_keeps_is_not_added_to() -> None:
    def kept() -> Any:
        found: list[torch.Tensor] = []
        x, c = torch.ones(4, requires_grad=True), torch.ones(4)
        y = x * 1
        y.register_hook(lambda g: (found.append(g), g + c)[1])
        (y * 2 + y * 3).sum().backward()
        return found[0]

    bare = kept()
    with managed("1MiB", **HOW):
        assert torch.equal(kept(), bare)


def test_a_run_is_what_it_was_asked_for() -> None:
    """No op runs in another form: a mode below the run sees what one sees without it."""

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def step() -> None:
        torch.manual_seed(0)
        x = torch.randn(8, 8, requires_grad=True)
        y = x.sort(dim=0)[0] + x.gather(0, torch.zeros(1, 8, dtype=torch.int64)) + x[torch.tensor([0, 1, 1])].sum(0)
        (y * y + x * x).sum().backward()

    with Names() as bare:
        step()
    with Names() as within, managed("1MiB", **HOW):
        step()
    assert within.seen == bare.seen


COMPOSITE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "svdvals": torch.linalg.svdvals,
    "eigvalsh": torch.linalg.eigvalsh,
    "cond": torch.linalg.cond,
    "interpolate": lambda x: nn.functional.interpolate(x[None, None], scale_factor=1.7, mode="bilinear"),
    "linear": lambda x: nn.functional.linear(x, x).relu(),
}


@pytest.mark.parametrize("name", COMPOSITE)
def test_an_op_that_arrives_whole_is_made_of_what_it_is_made_of_elsewhere(name: str) -> None:
    """Under inference mode, by kernels in C++; PyTorch has formulas in Python beside some, of other bits."""
    torch.manual_seed(0)
    with torch.inference_mode():
        x = torch.randn(12, 12)
        bare = COMPOSITE[name](x)
        with managed("64KiB", **HOW):
            assert torch.equal(COMPOSITE[name](x), bare)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(8).to_sparse() @ torch.ones(8, 8),
    "csr": lambda: torch.eye(8).to_sparse_csr() @ torch.ones(8, 8),
    "mkldnn": lambda: (torch.ones(8, 8).to_mkldnn() + torch.ones(8, 8).to_mkldnn()).to_dense(),
    "nested": lambda: (nested([torch.ones(2, 3), torch.ones(4, 3)]) * 2).to_padded_tensor(0.0),
    "nested with gradients": lambda: gradient_through_nested(),
    "an encoder that packs": lambda: encoded(),
}


def gradient_through_nested() -> torch.Tensor:
    x = torch.ones(2, 3, requires_grad=True)
    nested([x, x * 2]).to_padded_tensor(0.0).sum().backward()
    assert x.grad is not None
    return x.grad


def encoded() -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder, hidden = nn.TransformerEncoder(layer, 2).eval(), torch.zeros(4, 6, dtype=torch.bool)
    hidden[1, 4:] = True
    with torch.no_grad():
        found: torch.Tensor = encoder(torch.randn(4, 6, 16), src_key_padding_mask=hidden)
    return found


@pytest.mark.filterwarnings("ignore:.*prototype stage", "ignore:.*beta state")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_other_layouts_are_not_recorded_and_right(layout: str) -> None:
    bare = LAYOUTS[layout]()
    with warnings.catch_warnings(), managed("32KiB", **HOW) as run:
        warnings.filterwarnings("ignore", "runs on demand")
        for _ in range(3):
            assert torch.equal(LAYOUTS[layout](), bare)
    assert any("which has no storage of its own" in note for note in run.report().notes)


@pytest.mark.filterwarnings("ignore")
def test_what_a_quantized_tensor_has_its_scales_in_stays() -> None:
    """An op that hands them out is called by no name that says so, and later ones read them without naming them."""
    x, scales = torch.arange(128.0).reshape(2, 64), torch.tensor([0.5, 1.0])
    q = torch.quantize_per_channel(x, scales, torch.zeros(2), 0, torch.qint8)
    with managed("64KiB", **HOW) as run:
        held = q.q_per_channel_scales()
        assert all(cell.pinned for cell in run.memory.of([held]))


def test_parameters_that_are_not_there_yet() -> None:
    with managed("64KiB", **HOW):
        layer = nn.LazyLinear(4).half()
        layer.load_state_dict(nn.Linear(8, 4).half().state_dict())
        assert layer.float()(torch.ones(2, 8)).shape == (2, 4)


class Sized(torch.Tensor):
    """A subclass that is asked for its sizes, from where C++ cannot throw."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Sized:
        found: Sized = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), dtype=inner.dtype, dispatch_sizes_strides_policy="sizes"
        )
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*[x.inner if isinstance(x, Sized) else x for x in args], **(kwargs or {}))


def test_a_question_about_a_subclass_is_answered_and_an_op_of_it_refused() -> None:
    x = Sized(torch.ones(2, 3))
    with managed("64KiB", **HOW):
        assert x.size() == (2, 3)
        with pytest.raises(WorkloadError, match="of a Sized"):
            torch.add(x, 1)


def test_a_limit_that_cannot_be_kept_is_said_by_the_op() -> None:
    with pytest.raises(LimitError, match=r"mm.default holds 768 B at once"), managed(700, **HOW, on_exit="host"):
        torch.ones(8, 8) @ torch.ones(8, 8)


def test_transforms_print_and_split() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        str(x)
        return x.tensor_split(2)[0] * x.new_tensor(2.0)

    x = torch.arange(12.0).view(3, 4)
    bare = torch.vmap(inside)(x)
    with managed("64KiB", **HOW):
        assert torch.equal(torch.vmap(inside)(x), bare)


def test_what_is_copied_when_it_is_written_is_not_copied_before() -> None:
    """A run never asks for an address that it does not need: that of a lazy clone makes the copy."""
    x = torch.ones(64)
    with managed("64KiB", **HOW):
        lazy = x._lazy_clone()  # type: ignore[attr-defined]
        assert (lazy + 1).sum().item() == 128
        assert torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]
    assert torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]
