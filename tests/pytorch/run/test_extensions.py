"""Functions of extension modules are known by their signature, and find their tensors there."""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from gpumem.torch import managed
from gpumem.torch.run.extensions import extensions
from tests.pytorch.small_runs import HOW, away


def extension(name: str) -> Any:
    """A module as one that is loaded from a shared library, whose functions only Python knows to be its own."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, ExtensionFileLoader(name, f"{name}.so"))
    return module


def test_functions_of_extensions_are_known_by_their_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours, user = extension("kernels"), extension("torch.kernels"), ModuleType("user")
    monkeypatch.setattr("gpumem.torch.run.extensions.BuiltinFunctionType", FunctionType)

    def fused(x: Any) -> Any: ...

    def plain(x: Any) -> Any: ...

    fused.__doc__, plain.__doc__ = "fused(arg0: torch.Tensor) -> None", "plain(arg0: int) -> torch.Tensor"
    for module in (theirs, ours, user):
        module.fused, module.plain = fused, plain
    for module in (theirs, ours, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert {(m.__name__, name) for m, name in extensions() if "dlpack" not in name} == {
        ("kernels", "fused"),
        ("torch.kernels", "fused"),  # the same function by another name
        ("user", "fused"),
    }
    monkeypatch.delitem(sys.modules, "kernels")
    assert theirs not in [module for module, _ in extensions()]
    monkeypatch.setattr("gpumem.torch.run.extensions._loaded", lambda: 1)
    assert (theirs, "fused") in extensions()  # as `load_inline` leaves it


@pytest.mark.slow  # needs ninja and a compiler, and half a minute
def test_a_kernel_that_is_bound_past_the_dispatcher_finds_its_tensor_and_its_write_counts() -> None:
    from torch.utils.cpp_extension import load_inline

    source = "void set7(torch::Tensor x) { x.data_ptr<float>()[0] = 7; }"
    kernels = load_inline("gpumem_tests_kernels", source, functions=["set7"])
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        x.sum()  # it is back, and the host has a copy
        kernels.set7(x)
        away(run, x)
        kernels.set7(x)
        assert x[0].item() == 7
