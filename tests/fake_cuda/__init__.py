"""A fake CUDA driver for tests: `build` compiles it, `run` runs Python on it. README.md says what it does."""

import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread"]


LINKER = "nvJitLink"


class NoCompiler(RuntimeError):
    """The fake driver cannot be built here."""


def build(folder: Path | None = None) -> Path:
    """Compile `libcuda.so.1` into `folder` (a cache in the temporary folder, if None), unless it is there already."""
    sources = sorted(HERE.glob("*.[ch]"))
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    if folder is None:
        folder = Path(tempfile.gettempdir()) / f"fake_cuda_{os.getuid()}_{digest}"
    library = folder / "libcuda.so.1"
    stamp = folder / "built_from"
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return library
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompiler("the fake CUDA driver needs a C compiler, cc or gcc")
    if sys.platform != "linux":
        raise NoCompiler("the fake CUDA driver is for Linux")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        linker = [path for path in sources if path.stem == LINKER]
        code = [path for path in sources if path.suffix == ".c" and path not in linker]
        for name, parts in {f"lib{LINKER}.so.13": linker, library.name: code}.items():
            made = Path(scratch) / name
            command = [compiler, *FLAGS, f"-Wl,-soname,{name}", "-o", made, *parts, "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the fake CUDA driver does not compile:\n{done.stderr}")
            made.replace(folder / name)
        (Path(scratch) / "stamp").write_text(digest)
        (Path(scratch) / "stamp").replace(stamp)
    return library


def why_not() -> str:
    """Return why the fake driver cannot be built here, or nothing."""
    try:
        build()
    except NoCompiler as missing:
        return str(missing)
    return ""


def _translator() -> dict[str, str]:
    """What the driver makes libraries of PTX with, and where it keeps them."""
    script = HERE / "ptx.py"
    digest = sha256(script.read_bytes() + (HERE / "ptx.h").read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"fake_cuda_code_{os.getuid()}_{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    preload = os.pathsep.join(filter(None, [str(build().parent / f"lib{LINKER}.so.13"), os.environ.get("LD_PRELOAD")]))
    where = {"FAKE_CUDA_PYTHON": sys.executable, "FAKE_CUDA_TRANSLATOR": str(script), "FAKE_CUDA_CODE": str(folder)}
    return where | {"LD_PRELOAD": preload}


def environment(*, seed: int = 0, memory: int = 1 << 30, **env: str) -> dict[str, str]:
    """The environment in which a Python process has the fake driver, `gpumem` and `fake_cuda.control`."""
    full = os.environ | {"FAKE_CUDA_SEED": str(seed), "FAKE_CUDA_MEMORY": str(memory)} | _translator() | env
    for name, folders in {
        "LD_LIBRARY_PATH": [build().parent],
        "PYTHONPATH": [HERE.parent.parent / "src", HERE.parent],
    }.items():
        full[name] = os.pathsep.join([*map(str, folders), *filter(None, [full.get(name)])])
    full.pop("NUMBA_ENABLE_CUDASIM", None)
    full.pop("CUDA_VISIBLE_DEVICES", None)
    return full


def run(
    code: str, *, seed: int = 0, memory: int = 1 << 30, timeout: float = 60, python: str = sys.executable, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python snippet on the fake driver in a subprocess; its return code is the caller's to check."""
    command = [python, "-c", code]
    surroundings = environment(seed=seed, memory=memory, **env)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=surroundings)
