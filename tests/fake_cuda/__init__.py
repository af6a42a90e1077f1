"""A fake CUDA driver for tests: `build` compiles it, `run` runs Python on it. README.md says what it does."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
TRANSLATOR = HERE / "ptx"  # a package with which the driver makes kernels
LINKER = "libnvJitLink.so.13"
FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread"]


class NoCompiler(RuntimeError):
    """The fake driver cannot be built here."""


def build(folder: Path | None = None) -> Path:
    """Compile `libcuda.so.1` into `folder` (a cache in the temporary folder, if None), unless it is there already.

    Beside it lies a linker for kernels, which is found as it is loaded already when it is asked for.
    """
    sources = sorted(HERE.rglob("*.[ch]"))
    digest = _digest(sources)
    folder = folder or _cache(digest)
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
        made = Path(scratch)
        (made / "built_from").write_text(digest)
        _compile(compiler, made / LINKER, [HERE / "nvjitlink.c"])
        parts = [path for path in sources if path.suffix == ".c" and path.name != "nvjitlink.c"]
        _compile(compiler, made / library.name, parts)
        for path in sorted(made.iterdir(), key=lambda path: path == made / "built_from"):
            path.replace(folder / path.name)
    return library


def _digest(sources: list[Path]) -> str:
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def _cache(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"fake_cuda_{os.getuid()}_{name}"


def _compile(compiler: str, library: Path, sources: list[Path]) -> None:
    command = [compiler, *FLAGS, f"-Wl,-soname,{library.name}", "-o", library, *sources, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the fake CUDA driver does not compile:\n{done.stderr}")


def why_not() -> str:
    """Return why the fake driver cannot be built here, or nothing."""
    try:
        build()
    except NoCompiler as missing:
        return str(missing)
    return ""


def _kernels() -> Path:
    """The folder of compiled kernels, and of what makes them: a package that the driver runs."""
    sources = sorted(TRANSLATOR.glob("*.*"))
    folder = _cache(f"kernels_{_digest(sources)}")
    (folder / TRANSLATOR.name).mkdir(parents=True, exist_ok=True)
    for source in sources:
        wanted = folder / TRANSLATOR.name / source.name
        if not wanted.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                Path(shutil.copy(source, scratch)).replace(wanted)
    return folder


def _real_linker() -> Path | None:
    """NVIDIA's linker, installed by its wheels, which also makes PTX; no GPU is needed for that."""
    found = importlib.util.find_spec("nvidia")
    folders = found.submodule_search_locations if found else None
    linkers = (path for folder in folders or () for path in Path(folder).glob("*/lib/libnvJitLink.so.*"))
    return max(linkers, key=lambda path: int(path.suffix[1:]), default=None)


def environment(*, seed: int = 0, memory: int = 1 << 30, **env: str) -> dict[str, str]:
    """The environment in which a Python process has the fake driver, `gpumem` and `fake_cuda.control`."""
    ours = {"FAKE_CUDA_SEED": str(seed), "FAKE_CUDA_MEMORY": str(memory)}
    ours |= {"FAKE_CUDA_PYTHON": sys.executable, "FAKE_CUDA_KERNELS": str(_kernels())}
    ours |= {"PYTHONFAULTHANDLER": "1"}  # says where a call was made that ends the process
    if linker := _real_linker():
        ours["FAKE_CUDA_NVJITLINK"] = str(linker)
    full = os.environ | ours | env
    for name, folders in {
        "LD_LIBRARY_PATH": [build().parent],
        "LD_PRELOAD": [build().parent / LINKER],
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
