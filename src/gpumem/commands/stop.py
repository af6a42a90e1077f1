"""Ctrl-C and SIGTERM: one line, status 130 or 143, nothing half-written, within two seconds, whatever runs.

Python handles a signal between two bytecodes of the main thread, and there are none while that thread is in a compiled
loop. The byte that the interpreter writes at the signal itself (`signal.set_wakeup_fd`) wakes a thread of ours. It
gives the main thread a second to unwind, then removes what is half-written and ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, ModuleType

GRACE = 1.0  # seconds for the main thread to unwind
WORDS = {int(signal.SIGINT): "interrupted", int(signal.SIGTERM): "terminated"}


class Stop:
    """Handles signals while a command runs.

    Parameters
    ----------
    real : bool
        Whether this is the command line of a process. A call of `cli.main` from Python leaves signals as they are.
    """

    def __init__(self, *, real: bool) -> None:
        self.real = real and threading.current_thread() is threading.main_thread()
        self.status, self.once = 0, threading.Lock()
        self.before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        if self.real:
            waking, waked = os.pipe()
            os.set_blocking(waked, False)
            signal.set_wakeup_fd(waked, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(waking,), daemon=True).start()
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) == usual:  # who ignores it, as `nohup` has it, goes on to
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        """Handlers stay to the end of the process: threads may keep it alive."""

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.status:  # the second is the same as the first
            return
        self.status = 128 + number
        if not _moving():
            raise KeyboardInterrupt

    def interrupted(self) -> int:
        """Say so, once; return the exit status."""
        status = self.status or 128 + signal.SIGINT
        if self.once.acquire(blocking=False):
            print(f"gpumem: {WORDS[status - 128]}", file=sys.stderr, flush=True)
        return status

    def _watch(self, waking: int) -> None:
        """Wait for a signal; end the process if it is still there after a while."""
        while (number := os.read(waking, 1)[0]) not in WORDS or signal.getsignal(number) != self._on_signal:
            pass
        ended = threading.Event()
        ended.wait(GRACE)
        while _moving():
            ended.wait(0.01)
        if (files := _files()) is not None:
            files.abandon()
        self.status = self.status or 128 + number
        if sys.stderr.isatty():
            os.write(2, b"\r\x1b[?25h\x1b[K")  # the cursor is shown again, the line of progress is gone
        if self.once.acquire(blocking=False):
            os.write(2, f"gpumem: {WORDS[number]}\n".encode())
        os._exit(self.status)


def _files() -> ModuleType | None:
    return sys.modules.get("gpumem.io.files")


def _moving() -> bool:
    files = _files()
    return files is not None and bool(files.MOVING)
