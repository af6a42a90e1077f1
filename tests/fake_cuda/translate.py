"""`translate.py in.ptx out.so`: what the fake driver runs for PTX it has not seen. One line on stderr says why not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import ptx

FLAGS = ["-std=gnu11", "-O2", "-w", "-ffp-contract=off", "-fno-fast-math", "-fno-strict-aliasing", "-fwrapv"]
FLAGS += ["-fvisibility=hidden", "-shared", "-fPIC"]


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
    source, made = (wanted.with_suffix(f".{os.getpid()}.{kind}") for kind in ("c", "so"))
    try:
        source.write_text(ptx.translate(given.read_text()))
        if why := compiled(source, made):
            return why
        made.replace(wanted)
    except ptx.Refused as refused:
        return str(refused)
    finally:
        for path in (source, made):
            path.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])) or 0)
