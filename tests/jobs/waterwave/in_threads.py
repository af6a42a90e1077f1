"""Calls in threads at the same time, with a watchdog, and threads that hesitate."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

WATCHDOG = 60.0  # seconds: far more than anything here takes


def in_threads(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Run calls at the same time; return what each raised. One that hangs fails the test."""
    ends: list[BaseException | None] = [None] * len(calls)

    def one(k: int) -> None:
        try:
            calls[k]()
        except BaseException as error:
            ends[k] = error

    threads = [threading.Thread(target=one, args=(k,), daemon=True) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    until = time.monotonic() + WATCHDOG
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    return ends


def hesitate(rng: random.Random) -> None:
    """Do nothing, let another thread go first, or sleep a little."""
    drawn = rng.random()
    if drawn < 0.3:
        time.sleep(0 if drawn < 0.27 else 1e-4)
