"""Processes that are forked from a run, as a loader's workers, have all their tensors and no run."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpumem.runtime.residency.environment import Where
from gpumem.torch import managed
from tests.pytorch.small_runs import HOW, away


class Numbers(Dataset[torch.Tensor]):
    """The plainest there is."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.ones(8) * i


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_with_and_without_workers(workers: int) -> None:
    def sums() -> list[float]:
        return [batch.sum().item() for batch in DataLoader(Numbers(), batch_size=4, num_workers=workers)]

    bare = sums()
    with managed("1MiB", **HOW) as run:
        assert sums() == bare
    assert all(row.peak <= 2**20 for row in run.report().iterations)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_has_all_its_tensors_and_no_run() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        into, out = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(60)  # it may hang
            try:
                modes = torch._C._len_torch_dispatch_stack()
                os.write(out, f"{modes} {x.sum().item()} {x.numpy()[5]}".encode())
            finally:
                os._exit(0)  # whatever is raised: it would run the other tests, too
        os.close(out)
        os.waitpid(child, 0)
        assert os.read(into, 100) == b"0 192.0 3.0"
        assert run.memory.of([x])[0].where is not Where.DEVICE
        os.close(into)
    assert x.sum().item() == 192
