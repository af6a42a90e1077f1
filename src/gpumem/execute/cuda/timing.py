"""A gate before the ops that the host is issuing, so that what is measured is the device's time and not the host's.

A device that is quicker than its host stands idle between an event, the launch behind it and the next event. With the
gate shut it waits until there are `HELD` ops for it, and then has these one right after the other.

What the host issues may itself wait for the device: a launch into a full stream, each launch under
`CUDA_LAUNCH_BLOCKING=1` and some profilers, an op that synchronises. Behind a gate that would be for ever, so a gate
opens when nothing has been issued behind it for a while.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cuda.bindings import driver as api

HELD = 96  # ops: a stream takes about a thousand entries before the host has to wait, and behind a gate for ever
PATIENCE = 0.1  # seconds between two looks: a gate opens if nothing was issued in between. Not tuned
_GEQ = api.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ


class Gate:
    """A word of page-locked memory that streams wait for.

    Parameters
    ----------
    word : Buffer
        At least 4 bytes of page-locked memory.
    streams : sequence of Stream
    """

    def __init__(self, word: Any, streams: Sequence[Any]) -> None:
        self.word = ctypes.c_uint32.from_address(int(word.handle))
        self.address, self.streams = int(word.handle), [api.CUstream(int(stream.handle)) for stream in streams]
        self.word.value = self.shut = 0
        self.waiting = 0  # ops behind it
        self.active = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold back what is issued inside, so many ops at a time."""
        left = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(left,), daemon=True)
        watcher.start()
        self.active = True
        try:
            self._shut()
            yield
        finally:
            self.active, self.word.value = False, self.shut
            left.set()
            watcher.join()

    def _watch(self, left: threading.Event) -> None:
        """Open the gate whenever the host has been at one op for long, until what is issued has been left."""
        seen = None
        while not left.wait(PATIENCE):
            now = self.shut, self.waiting
            if now == seen:
                self.word.value = now[0]
            seen = now

    def op(self) -> None:
        """Note that an op is about to be issued."""
        if self.active and self.waiting == HELD:
            self.word.value = self.shut
            self._shut()
        self.waiting += 1

    def _shut(self) -> None:
        self.waiting, self.shut = 0, (self.shut + 1) % 2**32  # compared in a circle
        self._wait()

    def _wait(self) -> None:
        for stream in self.streams:
            (status,) = api.cuStreamWaitValue32(stream, self.address, self.shut, _GEQ)
            if status:
                raise RuntimeError(f"a wait for a word of memory: {status.name}")

    def works(self) -> bool:
        """Whether the driver has such waits: ask it for one of a gate that is open."""
        with suppress(RuntimeError):
            self._wait()
            return True
        return False


class Clocks:
    """Timing events of a run.

    Whoever records one passes on its token; when the host has waited for that, the event serves another. Between two
    iterations `turn` waits for the oldest tokens until there are events for one iteration more.

    Parameters
    ----------
    create : callable
        Returns a new timing event.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self.create = create
        self.every: list[Any] = []
        self.free: list[Any] = []
        self.out: deque[Any] = deque()  # tokens whose events are in use, oldest first
        self.need = 0

    def begin(self, need: int, turns: int) -> None:
        """Begin a run whose iterations take `need` events each; so many may be under way at once."""
        while len(self.every) < need * turns:
            self.every.append(self.create())
        self.free, self.need = self.every.copy(), need
        self.out.clear()

    def turn(self, wait: Callable[[Any], object]) -> None:
        """Have events for one iteration; called between two, since it may wait."""
        while self.out and (self.out[0].span is not None or len(self.free) < self.need):
            wait(self.out.popleft())

    def take(self) -> Any:
        """Return an event that nobody uses."""
        if not self.free:  # more ops than `begin` was given
            self.every.append(self.create())
            return self.every[-1]
        return self.free.pop()

    def give(self, *events: Any) -> None:
        """Take back events that the host has waited for."""
        self.free += [event for event in events if event is not None]
