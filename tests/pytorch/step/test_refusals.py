"""What cannot be recorded is refused in one line that says what to do; what a script does for a GPU works on meta."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, Dataset

from gpumem.torch import Captured, WorkloadError, record


def recorded(run: Callable[[Any, torch.Tensor], object], build: Any = None, device: str = "meta") -> Captured:
    """Record `run(net, x)`, one iteration."""

    def make() -> Callable[[], object]:
        net = (build or (lambda: nn.Linear(6, 3)))()
        return lambda: run(net, torch.randn(4, 6))

    return record(make, device, iterations=1)


def refused(run: Callable[[Any, torch.Tensor], object], build: Any = None, device: str = "meta") -> str:
    with pytest.raises(WorkloadError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch says about prototypes
        recorded(run, build, device)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 420
    return said


def net_of(net: Any, x: torch.Tensor) -> object:
    return net(x)


DEPENDS = {
    "nonzero.default": lambda net, x: net(x).nonzero(),
    "masked_select.default": lambda net, x: x.masked_select(net(x)[:, :1] > 0),
    "_unique2.default": lambda net, x: net(x).unique(),
    "index.Tensor": lambda net, x: x[net(x)[:, 0] > 0],
    "repeat_interleave.Tensor": lambda net, x: x.repeat_interleave(net(x)[:, 0].long().abs(), 0),
}


@pytest.mark.parametrize("op", DEPENDS)
def test_shapes_that_depend_on_values(op: str) -> None:
    said = refused(DEPENDS[op])
    assert f"{op} in the step, " in said and "how many it finds depends on what the net computes" in said
    assert "assume='balanced'" in said and "record on device='cpu'" in said and "test_refusals.py, line" in said
    assert recorded(DEPENDS[op], device="cpu").trace.n


def test_a_refusal_names_the_module() -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    said = refused(net_of, lambda: nn.Sequential(nn.Linear(6, 3), Picks()))
    assert "iteration 0: index.Tensor in 1, " in said


def test_an_op_without_a_meta_kernel() -> None:
    library = torch.library.Library("gpumem_test", "DEF")
    library.define("there(Tensor x) -> Tensor")
    library.impl("there", lambda x: x + 1, "CPU")
    try:
        said = refused(lambda net, x: torch.ops.gpumem_test.there(x))
    finally:
        library._destroy()
    assert "there.default in the step: PyTorch cannot run it without values" in said


@pytest.mark.parametrize("build", [lambda: nn.Linear(6, 3).to("cpu"), lambda: nn.Linear(6, 3, device="cpu")])
def test_a_model_on_the_host(build: Any) -> None:
    said = refused(net_of, build)
    assert "addmm.default in the step: a tensor of shape (3,) is on the host, others are on the device" in said
    assert "where device is an argument of make" in said


def test_all_on_the_host() -> None:
    def make() -> Callable[[], object]:
        return lambda: torch.randn(3, device="cpu") + 1

    with pytest.raises(WorkloadError, match=r"no op ran on meta; .*make\(device=...\)"):
        record(make)


@pytest.mark.parametrize("second", [lambda net: net.to("cuda:1"), lambda net: net.cuda(1)])
def test_two_devices(second: Callable[[Any], Any]) -> None:
    said = refused(lambda net, x: second(net)(x), lambda: nn.Linear(6, 3).to("cuda:0"))
    assert "cuda:0 and cuda:1: one device is recorded" in said
    assert recorded(lambda net, x: net(x.to("cuda:1")), lambda: nn.Linear(6, 3).cuda(1)).trace.n


def test_no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert refused(net_of, device="cuda") == "device: 'cuda': PyTorch sees no CUDA device here; 'meta' needs none"


def test_what_was_compiled() -> None:
    function = torch.compile(lambda x: x * 2, backend="eager")
    module = torch.compile(nn.Linear(6, 3, device="meta"), backend="eager")
    own = nn.Linear(6, 3, device="meta")
    own.compile(backend="eager")
    for device in ("meta", "cpu"):
        assert "leave torch.compile out" in refused(lambda net, x: function(x), device=device)
    for build in (
        lambda: torch.compile(nn.Linear(6, 3)),
        lambda: torch.compile(lambda x: x * 2),
        lambda: torch.compile()(lambda x: x * 2),
        lambda: module,
        lambda: own,
    ):
        said = refused(net_of, build)
        assert "torch.compile made of it cannot be recorded" in said and "leave torch.compile out" in said


@contextmanager
def one_process(path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without processes")
def test_what_is_spread_over_devices(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    with one_process(tmp_path / "store"):
        said = refused(net_of, lambda: nn.parallel.DistributedDataParallel(nn.Linear(6, 3)), "cpu")
        assert "the model is a DistributedDataParallel: one process with one device is recorded" in said
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        said = refused(net_of, lambda: fully_shard(nn.Linear(6, 3), mesh=mesh), "cpu")
        assert "FSDPModule" in said or "DTensor" in said
    said = refused(lambda net, x: net[0](x), lambda: [nn.Sequential(nn.DataParallel(nn.Linear(6, 3)))], "cpu")
    assert "0 is a DataParallel: one process with one device is recorded; record the module that it wraps" in said


def test_subclasses_that_decide_what_an_op_does() -> None:
    def masked(net: Any, x: torch.Tensor) -> object:
        return torch.masked.masked_tensor(x, x > 0) + 1

    assert "of a MaskedTensor: what a tensor subclass runs inside is not recorded; use plain" in refused(
        masked, None, "cpu"
    )
    jagged = refused(lambda net, x: net(torch.nested.nested_tensor([x, x], layout=torch.jagged)), None, "cpu")
    assert "of a NestedTensor" in jagged


def test_tensors_without_a_storage() -> None:
    sparse = refused(
        lambda net, x: net(torch.zeros(4, dtype=torch.long)).sum().backward(), lambda: nn.Embedding(5, 3, sparse=True)
    )
    assert "makes a sparse_coo tensor, which has no storage of its own; use dense ones (sparse=False)" in sparse
    assert "makes a sparse_coo tensor" in refused(lambda net, x: x.to_sparse(), None, "cpu")
    assert "makes a nested tensor" in refused(lambda net, x: torch.nested.nested_tensor([x, x]), None, "cpu")


def test_graphs() -> None:
    runs: list[Any] = [
        lambda net, x: torch.cuda.CUDAGraph(),
        lambda net, x: torch.cuda.make_graphed_callables(net, (x,)),
        *([lambda net, x: torch.accelerator.Graph()] if hasattr(torch.accelerator, "Graph") else []),
    ]
    for run in runs:
        assert "a CUDA graph replays kernels that no recorder sees; record the step without it" in refused(run)


def test_libraries_that_name_graphs_in_annotations_can_be_imported_in_a_recording() -> None:
    def make() -> Callable[[], object]:
        assert all(kind | None for kind in (torch.cuda.CUDAGraph, torch.cuda.Stream, torch.cuda.Event))
        return lambda: torch.ones(2)

    record(make)


def test_within_another_recording() -> None:
    assert "a capture within a capture" in refused(lambda net, x: recorded(net_of))
    with FakeTensorMode(), pytest.raises(WorkloadError, match="a FakeTensorMode is active: leave it before recording"):
        recorded(net_of)


class Rows(Dataset[torch.Tensor]):
    """Rows of the host."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(np.ones(6, np.float32))


def within_a_device(net: Any, x: torch.Tensor) -> object:
    with torch.device("cuda"):
        return net(torch.ones(4, 6))


def autocast_by_its_device(net: Any, x: torch.Tensor) -> object:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(x.device.type) and torch.get_autocast_dtype("cuda") == net(x).dtype
    return net(x)


SCRIPTS: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "moved": lambda net, x: net(x.cuda(non_blocking=True)) + net(x.to("cuda:0")) + net(x.to(torch.device("cuda", 0))),
    "chosen": lambda net, x: net(torch.ones(4, 6).to("cuda" if torch.cuda.is_available() else "cpu")),
    "pinned": lambda net, x: net(torch.ones(4, 6, device="cpu", pin_memory=True).pin_memory().to("cuda")),
    "from NumPy": lambda net, x: net(torch.from_numpy(np.ones((4, 6), np.float32)).to("cuda")),
    "from a list": lambda net, x: net(torch.tensor([[1.0] * 6])),
    "a default device": lambda net, x: (torch.set_default_device("cuda"), net(torch.ones(4, 6))),
    "within a device": within_a_device,
    "waited for": lambda net, x: (net(x), torch.cuda.synchronize(), torch.cuda.Event(enable_timing=True).record()),
    "on a stream": lambda net, x: [x.record_stream(s) or net(x) for s in [torch.cuda.Stream()]],
    "loaded": lambda net, x: net.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()}) and net(x),
    "the loss on the host": lambda net, x: net(x).detach().cpu().numpy().tolist(),
    "autocast by its device": autocast_by_its_device,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_scripts_do_for_a_gpu(script: str) -> None:
    assert "addmm.default" in recorded(SCRIPTS[script]).trace.ops.name
    assert torch.get_default_device().type == "cpu" and not torch.cuda.is_available()


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_draw_on_the_host(workers: int) -> None:
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers)
    found = recorded(lambda net, x: [net(rows.to("cuda")) for rows in loader])
    assert found.trace.ops.name == ("randn.default", *("_to_copy.default", "addmm.default") * 2) and not found.notes
