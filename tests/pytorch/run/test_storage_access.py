"""Reads and writes that no op tells of: of a storage, an address, a capsule, a file, a script, element by element."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpumem.runtime.residency.environment import Where
from gpumem.torch import managed
from gpumem.torch.run.storage_access import LOOKS, READS, WRITES, ByteAccess, access_of, methods
from tests.pytorch.small_runs import HOW, away


def test_every_method_of_a_storage_is_known() -> None:
    """A canary: a method that a new PyTorch adds keeps the storage on the device until somebody has looked at it."""
    kept = {"_resize_with_addr_", "_set_cdata", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_"}
    kept |= {"_swap_data_ptr_", "data_ptr", "share_memory_"}
    new = {name for name, how in methods() if how is ByteAccess.KEEPS} - kept
    assert not new, f"look what these do with a storage's bytes, and put them into LOOKS, READS or WRITES: {new}"


def test_a_method_is_in_one_list() -> None:
    assert not (LOOKS & READS or LOOKS & WRITES or READS & WRITES)
    assert access_of("of another version") is ByteAccess.KEEPS


WRITTEN: dict[str, Callable[[torch.UntypedStorage], object]] = {
    "byteswap": lambda s: s.byteswap(torch.int32),
    "fill_": lambda s: s.fill_(3),
    "copy_": lambda s: s.copy_(torch.full((s.nbytes(),), 7, dtype=torch.uint8).untyped_storage()),
    "__setitem__": lambda s: s.__setitem__(0, 9),
    "_set_from_file": lambda s: from_file(s),
}


def from_file(storage: torch.UntypedStorage) -> None:
    """Fill a storage from a file, as old checkpoints are read."""
    source = torch.arange(storage.nbytes() // 4, dtype=torch.int32).untyped_storage()
    with os.fdopen(os.memfd_create("bytes"), "w+b") as file:
        source._write_file(file, True, True, 4)
        file.seek(0)
        storage._set_from_file(file, 0, True, 4)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_write_past_the_dispatcher_is_the_one_that_comes_back(name: str) -> None:
    x = torch.arange(64.0)
    WRITTEN[name](x.untyped_storage())
    with managed("64KiB", **HOW) as run:
        y = torch.arange(64.0)
        away(run, y)
        run.memory.ensure_resident(run.memory.of([y]), 0, "")  # on the device and on the host
        WRITTEN[name](y.untyped_storage())
        away(run, y)
        assert torch.equal(y + 0, x)


@pytest.mark.parametrize("name", ["tolist", "clone", "__getitem__", "_write_file"])
def test_a_read_past_the_dispatcher_finds_the_bytes_and_lets_them_go_again(name: str) -> None:
    def read(s: torch.UntypedStorage) -> Any:
        if name == "_write_file":
            with os.fdopen(os.memfd_create("bytes"), "w+b") as file:
                s._write_file(file, True, True, 4)
                file.seek(0)
                return file.read()
        found = getattr(s, name)(0) if name == "__getitem__" else getattr(s, name)()
        return found if name in ("tolist", "__getitem__") else found.tolist()

    expected = read(torch.arange(64.0).untyped_storage())
    with managed("64KiB", **HOW) as run:
        y = torch.arange(64.0)
        away(run, y)
        assert read(y.untyped_storage()) == expected
        assert not run.memory.of([y])[0].pinned


def test_what_is_copied_from_one_storage_to_another_is_there() -> None:
    with managed("64KiB", **HOW) as run:
        x, y = torch.zeros(64) * 1, torch.ones(64) * 1
        away(run, x, y)
        x.untyped_storage().copy_(y.untyped_storage())
        assert all(cell.where is Where.DEVICE for cell in run.memory.of([x, y]))
        away(run, x)
        assert x.sum().item() == 64


def test_a_storage_that_is_resized_is_on_the_books_as_large_as_it_is() -> None:
    with managed("1MiB", **HOW) as run:
        x = torch.ones(2000)
        before = run.memory.held
        x.untyped_storage().resize_(404_000)
        assert run.memory.held == before + 396_000
        del x
        run.memory.reap()
        assert run.memory.held == before - 8000


def test_a_consumer_of_dlpacks_table_of_functions_is_seen() -> None:
    """It finds no table, and asks for a capsule, so that the run knows of it."""
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        assert getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is None
        assert np.from_dlpack(x).tolist() == [3.0] * 64  # type: ignore[arg-type]
        assert run.memory.of([x])[0].pinned


def test_saving_is_a_read() -> None:
    """PyTorch asks for addresses as names there; what moves may have another's, so it gets a number of its own."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    step = torch.zeros(64 * 64, dtype=torch.float16)
    held = {**net.state_dict(), "step": step}
    bare, file = io.BytesIO(), io.BytesIO()
    torch.save(held, bare)
    with managed("17KiB", **HOW, on_exit="host") as run:
        for x in held.values():
            x.add_(0)  # one at a time, as only one fits
        torch.save(held, file)
        assert not any(cell.pinned for cell in run.memory.by_key.values())
    assert file.getvalue() == bare.getvalue()


HOST_READS: dict[str, Callable[..., Any]] = {
    "tensor": lambda s, n, i, big: torch.tensor([s, s]),
    "as_tensor": lambda s, n, i, big: torch.as_tensor([s, s]),
    "FloatTensor": lambda s, n, i, big: torch.FloatTensor([s, s]),
    "tensor_split": lambda s, n, i, big: torch.cat([part.flip(0) for part in torch.tensor_split(big, i)]),
    "pad_packed": lambda s, n, i, big: torch._VF._pad_packed_sequence(big[:15].view(5, 3), n, False, 0.0, 3)[0],  # type: ignore[attr-defined]
}


def host_operands() -> list[torch.Tensor]:
    return [torch.tensor(2.0), torch.tensor([2, 2, 1]), torch.tensor([3, 5]), torch.arange(20.0)]


@pytest.mark.parametrize("name", HOST_READS)
def test_what_is_read_on_the_host_before_an_op_is_called_stays_there(name: str) -> None:
    bare = HOST_READS[name](*host_operands())
    with managed(8192, **HOW, on_exit="host") as run:
        given = host_operands()
        run.memory.of(given)
        torch.ones(900).add(1)  # all that can go is off the device by now
        given[-1].add_(0)
        assert torch.equal(HOST_READS[name](*given), bare)


def test_a_generators_state_stays_on_the_host() -> None:
    state = torch.get_rng_state()
    bare = torch.rand(4)
    with managed(10_200, **HOW, on_exit="host"):
        state.clone()
        torch.ones(1000)  # all that can go is off the device by now
        torch.Generator().set_state(state)
        torch.set_rng_state(state)
        assert torch.equal(torch.rand(4), bare)


LOOPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "apply_": lambda x: x.clone().apply_(lambda y: y + 1),
    "map_": lambda x: x.map_(x * 2, lambda y, z: y + z),
    "map2_": lambda x: x.map2_(x * 2, x, lambda w, y, z: w + y + z),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_elements_find_them_there(name: str) -> None:
    bare = LOOPS[name](torch.arange(20.0))
    with managed("64KiB", **HOW) as run:
        x = torch.arange(20.0)
        away(run, x)
        assert torch.equal(LOOPS[name](x), bare)


def test_a_part_of_a_storage_is_there_as_long_as_it_is_wanted() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.arange(64, dtype=torch.uint8).float()
        part = x.untyped_storage()[8:16]
        assert run.memory.of([x])[0].pinned
        assert torch.empty(0).set_(part).tolist() == [2.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_module_is_saved_with_its_values() -> None:
    module, bare, file = torch.jit.script(nn.Linear(8, 8)), io.BytesIO(), io.BytesIO()
    torch.jit.save(module, bare)
    with managed("64KiB", **HOW) as run:
        module(torch.ones(1, 8))
        away(run, *module.parameters())
        torch.jit.save(module, file)
    file.seek(0)
    assert all(map(torch.equal, torch.jit.load(file).parameters(), module.parameters()))


class Attributes(nn.Module):
    """It has tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [torch.ones(300) * 5]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*TorchScript")
def test_what_a_file_is_written_of_from_c_is_all_there() -> None:
    module, file = torch.jit.script(Attributes()), io.BytesIO()
    with managed(4000, **HOW, on_exit="host") as run:
        module(torch.ones(300))
        torch.ones(700).add_(1)  # all that can go is off the device by now
        torch.jit.save(module, file)
        assert run.memory.limit == 4000 and run.memory.held <= 4000
    file.seek(0)
    assert torch.jit.load(file)(torch.zeros(300)).tolist() == [5.0] * 300


def test_the_limit_holds_again_once_a_file_is_written() -> None:
    with managed(1000, **HOW, on_exit="host") as run:
        kept = [torch.full((100,), float(k)) for k in range(3)]
        assert run.memory.held == 800
        with run._all_on_device():
            assert run.memory.held == 1200 and [x[0].item() for x in kept] == [0, 1, 2]
        assert run.memory.held == 800 and run.memory.limit == 1000


to_dlpack = torch.utils.dlpack.to_dlpack  # as a bridge has it, before there is a run


def test_a_capsule_that_was_imported_by_name_keeps_its_tensor() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        assert torch.utils.dlpack.from_dlpack(to_dlpack(x)).tolist() == [3.0] * 64
        assert run.memory.of([x])[0].pinned


def scripted(x: torch.Tensor) -> list[torch.Tensor]:
    return torch.tensor_split(x + torch.tensor([1.0, 2.0]), 2)


@pytest.mark.parametrize("made", [lambda v: torch.tensor([v[0], v[5]]), lambda v: v.new_tensor([v[1]])])
def test_parts_of_what_is_away_may_make_a_tensor(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with managed("64KiB", **HOW) as run:
        v = torch.arange(64.0) * 2
        away(run, v)
        assert torch.equal(made(v), made(torch.arange(64.0) * 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_functions_are_those_that_a_compiler_of_scripts_knows() -> None:
    bare = torch.jit.script(scripted)(torch.ones(2))
    with managed("64KiB", **HOW):
        assert all(map(torch.equal, torch.jit.script(scripted)(torch.ones(2)), bare))
    assert all(map(torch.equal, torch.jit.script(scripted)(torch.ones(2)), bare))


def test_a_script_may_be_the_first_of_its_process() -> None:
    """The table of builtins is made within the run then."""
    code = """
import torch
from gpumem.runtime.residency.environment import Where
from gpumem.torch import managed
def f(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor_split(x, 2)[0] + torch.tensor([1.0])
with managed("64KiB", device="cpu"):
    torch.jit.script(f)(torch.ones(2))
def g(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor_split(x, 2)[1] + torch.tensor([1.0])
print(torch.jit.script(g)(torch.ones(2)).item())
"""
    file = pathlib.Path(tempfile.mkdtemp()) / "script.py"  # a script's source is read from its file
    file.write_text(code)
    done = subprocess.run([sys.executable, "-W", "ignore", str(file)], capture_output=True, text=True, check=False)
    assert done.stdout == "2.0\n", done.stderr


def test_tensors_of_other_layouts_are_printed() -> None:
    bare = repr(torch.eye(16).to_sparse())
    with managed("64KiB", **HOW) as run, warnings.catch_warnings():
        x = torch.eye(16).to_sparse()
        away(run, x._indices(), x._values())
        assert repr(x) == bare


@pytest.mark.parametrize("index", [0, slice(0, 4)])
def test_bytes_written_to_a_storage_itself_are_the_ones_that_come_back(index: Any) -> None:
    x = torch.ones(256, dtype=torch.uint8)
    with managed("1MiB", device="cpu") as run:
        x + 1
        (cell,) = run.memory.of([x])
        run.memory.release(cell)
        run.memory.ensure_resident([cell], 0, "")
        assert cell.copy is not None  # what the host has is good until it is written
        x.untyped_storage()[index] = 7
        run.memory.release(cell)
        assert int(x[0]) == 7
