"""Translate and compile: what the fake driver runs for PTX that it has not seen."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import Refused, translate

FLAGS = ["-std=gnu11", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fno-strict-aliasing", "-fwrapv"]
FLAGS += ["-fvisibility=hidden", "-shared", "-fPIC", "-Werror=frame-larger-than=8192"]  # stacks are small


def compiled(source: Path, made: Path) -> str:
    """Compile for this machine, whose fused multiply-add is quick; return what the compiler says, or nothing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "there is no C compiler, cc or gcc"
    for machine in (["-march=native"], []):
        command = [compiler, *FLAGS, *machine, f"-I{Path(__file__).parent}", "-o", made, source, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode:
            return ""
    return " ".join(done.stderr.split())


def main(given: Path, wanted: Path) -> str:
    """Make a library of a text; return why there is none, or nothing."""
    source, made = (wanted.with_suffix(f".{os.getpid()}.{kind}") for kind in ("c", "so"))
    try:
        source.write_text(translate(given.read_text()))
        if why := compiled(source, made):
            return why
        made.replace(wanted)
    except Refused as refused:
        return str(refused)
    finally:
        for path in (source, made):
            path.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])) or 0)
