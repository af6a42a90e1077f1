"""The Numba program of the page docs/guides/live.md, on the fake driver: what it prints is what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fake_cuda
from tests.on_fake_driver import needs_kernels

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "live.md").read_text()
DEVICE = 24 * 2**20
LARGER = 256 * 2**20
TIMES = re.compile(r" +(time|[\d.]+ (?:us|ms|s))$|(?<=planner heuristic ).*", re.M)


def typed() -> list[tuple[dict[str, str], list[str], str]]:
    """The commands of the page: variables, words, and what they print."""
    found = []
    for line, shown in re.findall(r"^```text\n\$ (.*python.*)\n((?:.*\n)*?)```$", PAGE, re.M):
        words = shlex.split(line)
        told = dict(word.split("=", 1) for word in words if "=" in word)
        found.append((told, [word for word in words if "=" not in word], shown))
    return found


def ran(folder: Path, words: list[str], memory: int, **told: str) -> str:
    """What a command prints, the last of its lines first to blame."""
    # where an iteration is found to end hangs on the hashes of names: with some seeds (6, 7) later than on the page
    surroundings = fake_cuda.environment(memory=memory, **told) | {"PYTHONHASHSEED": "1"}
    command = [sys.executable, *words[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=surroundings)
    return done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.jit
def test_the_program_of_the_page(tmp_path: Path) -> None:
    needs_kernels()
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.M | re.S):
        (tmp_path / name).write_text(text)
    commands = typed()
    assert [words[-1] for _, words, _ in commands] == ["train.py", "train.py", "within.py"]
    larger = ran(tmp_path, commands[0][1], LARGER)
    for told, words, shown in commands:
        printed = ran(tmp_path, words, DEVICE, **told)
        if shown.startswith("...\n"):
            assert printed.endswith(shown.removeprefix("...\n"))
        else:
            assert printed.startswith(larger)  # the same result
            assert TIMES.sub("", printed) == TIMES.sub("", shown)
