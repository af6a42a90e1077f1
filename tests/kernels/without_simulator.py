"""Code in a process of its own, where `numba.cuda` is the compiler and not the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    """Run code without the simulator; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    return done.stdout
