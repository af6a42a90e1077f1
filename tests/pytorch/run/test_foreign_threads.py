"""Threads that a run starts may not touch what it manages, and are seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import gpumem.torch.run.memory as leaving
from gpumem.torch import WorkloadError, managed
from tests.pytorch.small_runs import HOW, away


class Prefetcher(threading.Thread):
    """What it runs is its own method, as a loader's is."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work, self.found = work, []  # type: ignore[var-annotated]

    def run(self) -> None:
        try:
            self.found.append(self.work())
        except Exception as error:
            self.found.append(error)


def test_a_thread_with_a_method_of_its_own_is_seen() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        thread = Prefetcher(lambda: x + 1)
        thread.start()
        thread.join()
    assert isinstance(thread.found[0], WorkloadError) and "managed by another thread" in str(thread.found[0])


def test_a_thread_that_outlives_its_run_may_do_what_it_likes() -> None:
    with ThreadPoolExecutor(1) as pool:
        with managed("64KiB", **HOW):
            x = torch.ones(64) * 3
            with pytest.raises(WorkloadError, match="another thread"):
                pool.submit(lambda: x + 1).result()
        assert torch.equal(pool.submit(lambda: x + 1).result(), torch.full((64,), 4.0))


def test_a_thread_may_not_touch_what_is_not_back_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool:

        def touched() -> None:
            with pytest.raises(WorkloadError, match="another thread") as error:
                pool.submit(lambda: x + 1).result()
            found.append(error.value)
            bring(run.memory)

        bring = leaving.restore
        monkeypatch.setattr("gpumem.torch.run.managed_run.restore", lambda memory: touched())
        with managed("64KiB", **HOW) as run:
            pool.submit(lambda: 1).result()
            x = torch.ones(64) * 3
            away(run, x)
    assert len(found) == 1 and x.sum().item() == 192


def test_a_pool_that_is_older_than_the_run_is_seen_while_it_lasts() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: 1).result() == 1
        with managed("64KiB", **HOW) as run:
            x = torch.ones(64) * 3
            away(run, x)
            with pytest.raises(WorkloadError, match="another thread"):
                pool.submit(lambda: x + 1).result()
        assert torch.equal(pool.submit(lambda: x + 1).result(), torch.full((64,), 4.0))


def test_threads_that_a_run_starts_may_not_touch_what_it_manages() -> None:
    weight, errors = torch.ones(8), []

    def touch() -> None:
        try:
            weight + 1
        except WorkloadError as error:
            errors.append(str(error))

    with managed("1MiB", device="cpu"):
        weight * 2
        thread = threading.Thread(target=touch, name="loader")
        thread.start()
        thread.join()
    assert len(errors) == 1 and "thread 'loader'" in errors[0] and "(8,)" in errors[0]
