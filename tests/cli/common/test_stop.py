"""Ctrl-C and SIGTERM: one line, the status of the signal, nothing half-written, whatever runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import gpumem
from gpumem.cli.common.stop import Stop
from gpumem.io import staged, write_text

ENV = os.environ | {"PYTHONPATH": str(Path(gpumem.__file__).parents[1])}
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# A command that is half through its files when it comes to what runs for long.
SCRIPT = """
import hashlib, sys, time
from gpumem.base import files
from gpumem.cli import doctor
from gpumem.cli.common import stop

def compiled():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes without a bytecode, as in a compiled loop

def python():
    while True:
        time.sleep(0.001)

def stubborn():
    while True:
        try:
            python()
        except KeyboardInterrupt:
            pass

def unheard():
    class Loud:
        def __del__(self):
            python()

    Loud()

def another():
    try:
        python()
    except KeyboardInterrupt:
        raise ValueError("no compiled object yet")

def work():
    with files.staged("out", "--out") as folder, files.replacing("log") as log:
        (folder / "half").write_text("half")
        log.write(b"half")
        print("working", flush=True)
        run()

doctor.examine, stop.GRACE, run = work, float(sys.argv.pop()), globals()[sys.argv.pop()]
from gpumem.cli.main import main
raise SystemExit(main())
"""


@contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=ENV,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever our own parent ignores
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str], number: signal.Signals, *, times: int = 1) -> tuple[int, str]:
    for _ in range(times):
        process.send_signal(number)
    _, err = process.communicate(timeout=20)
    return process.returncode, err


@pytest.mark.parametrize(
    ("where", "number", "grace"),
    [
        ("compiled", signal.SIGINT, 0.05),
        ("compiled", signal.SIGTERM, 0.05),
        ("python", signal.SIGINT, 60),
        ("stubborn", signal.SIGINT, 0.05),
        ("unheard", signal.SIGINT, 60),
        ("another", signal.SIGINT, 60),
    ],
)
def test_nothing_is_left_of_what_was_interrupted(
    tmp_path: Path, where: str, number: signal.Signals, grace: float
) -> None:
    with running(tmp_path, "-c", SCRIPT, "doctor", where, str(grace)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        times = 2 if where == "python" else 1  # the second says nothing more
        assert interrupt(process, number, times=times) == (128 + number, f"gpumem: {WORDS[number]}\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_files_are_moved_waits_for_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, replace = Stop(real=False), Path.replace

    def slowly(path: Path, target: Path) -> Path:
        stop._on_signal(signal.SIGINT, None)  # it raises nothing here
        return replace(path, target)

    with staged(tmp_path / "out", "--out") as folder:
        for name in ("a", "b"):
            write_text(folder / name, name)
        monkeypatch.setattr(Path, "replace", slowly)
    assert {path.name for path in tmp_path.rglob("*")} == {"out", "a", "b"}
    assert stop.status == 130
    with pytest.raises(KeyboardInterrupt):
        Stop(real=False)._on_signal(signal.SIGINT, None)


LONG = [
    "plan vgg16 --limit 45% --planner search --out out",
    "plan resnet18 --limit 60% --out out",
    "plan mlp3 --load-limit 95% --out out",
    "swap vgg16 --limit 60% --out out",
    "bound vgg16 --load-limit 50%",
    "pool --planner search,exact --effort 9" + " vgg16 resnet18" * 300,  # one search takes milliseconds
    "jobs vgg16 resnet18 mlp3 --limit 60% --iterations 60 --log log",
    "run cnn --device emulate --iterations 300",
    "run vgg16 --device emulate --iterations 100",
    "bench swap --out out",
    "bench pool --out out" + " vgg16 resnet18" * 40,
    "bench tensile --out out",
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("line", LONG, ids=[line[:60] for line in LONG])
def test_a_long_command_can_be_interrupted_at_any_moment(tmp_path: Path, line: str, seed: int) -> None:
    moment = random.Random(f"{line} {seed}").uniform(1.5, 8)  # Python itself is up by then
    with running(tmp_path, "-m", "gpumem", "--quiet", *line.split()) as process:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=moment)
            pytest.skip("it was done before")
        begin = time.monotonic()
        assert interrupt(process, signal.SIGINT) == (130, "gpumem: interrupted\n")
    took = time.monotonic() - begin
    print(f"{line[:60]}: interrupted after {moment:.2f} s, ended within {took:.2f} s")
    assert took < 2
    left = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    assert not [path for path in left if path.name.startswith(".")]
    assert left != [Path("out")]  # a folder is there with what belongs into it, or it is not there
