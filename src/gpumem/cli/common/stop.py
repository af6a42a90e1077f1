"""Ctrl-C and SIGTERM: one line, status 130 or 143, nothing half-written, within two seconds, whatever runs.

Python handles a signal between two bytecodes of the main thread, and there are none while that thread is in a compiled
loop. The byte that the interpreter writes at the signal itself (`signal.set_wakeup_fd`) wakes a thread of ours. It
gives the main thread half a second to unwind, then removes what is half-written and ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, ModuleType
from typing import NoReturn

GRACE = 0.5  # seconds for the main thread to unwind
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
        self.status, self.last_word = 0, threading.Lock()  # who has the last word ends the process

    def begin(self) -> None:
        """Handle signals from here to the end of the process, which threads may keep alive."""
        if self.real:
            waking, waked = os.pipe()
            os.set_blocking(waked, False)
            signal.set_wakeup_fd(waked, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(waking,), daemon=True).start()
            sys.unraisablehook = self._on_unraisable
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) == usual:  # who ignores it, as `nohup` has it, goes on to
                    signal.signal(number, self._on_signal)

    def end(self) -> None:
        """The command is done; an interrupt from here on is too late, unless threads keep the process alive."""
        alone = all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate())
        if self.real and alone and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupted(self) -> int:
        """Say so; return the exit status, or end the process where it is ours: threads must not keep it alive."""
        self.last_word.acquire(timeout=GRACE)
        self.status = self.status or 128 + signal.SIGINT
        if self.real:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            self._exit()
        print(self._line(), file=sys.stderr, flush=True)
        return self.status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.status:  # the second is the same as the first
            return
        self.status = 128 + number
        if not _moving():
            raise KeyboardInterrupt

    def _on_unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """An interrupt where nobody can catch it, in a callback of the compiler or a `__del__`, would be lost."""
        if self.status and issubclass(what.exc_type, KeyboardInterrupt):
            self._abandon()
        sys.__unraisablehook__(what)

    def _watch(self, waking: int) -> None:
        """Wait for a signal; end the process if it is still there after a while."""
        while (number := os.read(waking, 1)[0]) not in WORDS or signal.getsignal(number) != self._on_signal:
            pass
        ended = threading.Event()
        ended.wait(GRACE)
        while _moving():
            ended.wait(0.01)
        self.status = self.status or 128 + number
        self._abandon()

    def _abandon(self) -> NoReturn:
        """End the process from where it cannot unwind."""
        self.last_word.acquire(timeout=GRACE)
        if (files := _files()) is not None:
            files.abandon()
        self._exit()

    def _line(self) -> str:
        return f"gpumem: {WORDS[self.status - 128]}"

    def _exit(self) -> NoReturn:
        restored = b"\r\x1b[?25h\x1b[K" if sys.stderr.isatty() else b""  # the cursor again, and no line of progress
        with suppress(OSError):
            os.write(2, restored + f"{self._line()}\n".encode())
        os._exit(self.status)


def _files() -> ModuleType | None:
    return sys.modules.get("gpumem.base.files")


def _moving() -> bool:
    files = _files()
    return files is not None and bool(files.MOVING)
