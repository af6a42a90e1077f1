"""`gpumem doctor`: what of CUDA and of the optional packages is here, what is missing, and what would install it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
from dataclasses import dataclass
from typing import Any

from gpumem.cli.common.parser import Command, option

CUDA = "pip install 'gpumem[cu13]' (or [cu12], by the driver)"
DRIVER = "install the NVIDIA driver of your system (https://www.nvidia.com/drivers)"
PACKAGES = {
    "numpy": "pip install gpumem",
    "numba": "pip install gpumem",
    "scipy": "pip install gpumem",
    "msgspec": "pip install gpumem",
    "rich": "pip install gpumem",
    "numba-cuda": CUDA,
    "cuda-core": CUDA,
    "cuda-bindings": CUDA,
}
EXTRAS = {  # as in pyproject.toml: extra -> its packages, with the major version where it matters
    "cu12": ("numba-cuda", "cuda-python 12", "cuda-core"),
    "cu13": ("numba-cuda", "cuda-python 13", "cuda-core"),
    "plot": ("matplotlib",),
    "pandas": ("pandas",),
    "torch": ("torch",),
    "zoo": ("torch", "torchvision", "timm", "transformers", "diffusers", "torchaudio"),
    "latency": ("scikit-learn",),
    "dask": ("distributed",),
    "nvtx": ("nvtx",),
    "docs": (
        *("sphinx", "myst-parser", "numpydoc", "pydata-sphinx-theme", "sphinx-design", "sphinx-copybutton"),
        *("matplotlib", "hypothesis"),
    ),
    "test": (
        *("pytest", "pytest-xdist", "hypothesis", "matplotlib", "pandas", "numba-cuda", "cuda-core", "cuda-bindings"),
        "scikit-learn",
    ),
    "lint": ("ruff", "mypy"),
}
SUCCESSOR = "numba-cuda-mlir"  # of numba-cuda, where the environment chooses it
NEEDED = ("cuda-bindings", "cuda-core", "numba-cuda", SUCCESSOR, "driver", "device", "nvvm", "nvrtc", "nvJitLink")


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether something is here, which or why not, and what would install it."""

    ok: bool
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, by name; whether programs can run on CUDA here, and why not."""

    python: str
    system: str
    findings: dict[str, Finding]
    extras: dict[str, Finding]
    devices: list[Any]
    cuda: bool
    why: str


def run(args: argparse.Namespace) -> int:
    """Look for what CUDA needs and for the extras of gpumem; time pinned copies where there is a device."""
    findings = examine()
    if findings.cuda and not args.no_measure:
        findings.findings["link"] = _link()
    print(json.dumps(dataclasses.asdict(findings)) if args.json else _text(findings))
    return 0


def examine() -> Diagnosis:
    """Look for everything but the device's link."""
    rows = _findings()
    kernels = rows["numba-cuda"].ok
    rows["simulator"] = _row(kernels, "NUMBA_ENABLE_CUDASIM=1 runs kernels on the CPU" if kernels else "none", CUDA)
    cc = shutil.which("cc") or shutil.which("gcc")
    rows["C compiler"] = _row(cc is not None, cc or "none", "install gcc; only the tests with the fake driver use it")
    missing = why_no_cuda(rows)
    extras = {name: _extra(name, packages) for name, packages in EXTRAS.items()}
    system = f"{platform.system()} {platform.machine()}"
    return Diagnosis(
        platform.python_version(),
        system,
        findings=rows,
        extras=extras,
        devices=_devices(rows),
        cuda=not missing,
        why=missing,
    )


def why_no_cuda(rows: dict[str, Finding] | None = None) -> str:
    """Return why programs cannot run on CUDA here, or nothing if they can."""
    rows = _findings() if rows is None else rows
    for name in filter(rows.__contains__, NEEDED):
        if not rows[name].ok:
            return f"{name}: {rows[name].what}; {rows[name].hint}"
    return ""


def _row(ok: bool, what: str, hint: str) -> Finding:
    return Finding(ok, what, "" if ok else hint)


def _version(name: str) -> str:
    """The version of a package, or nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _package(name: str, hint: str) -> Finding:
    version = _version(name)
    return _row(bool(version), version or "not installed", hint)


def _extra(name: str, packages: tuple[str, ...]) -> Finding:
    """A row of an extra: what of it is here, and what is not."""
    here: list[str] = []
    lacking: list[str] = []
    for package, _, major in (entry.partition(" ") for entry in packages):
        version = _version(package)
        right = version and (not major or version.split(".")[0] == major)
        (here if right else lacking).append(f"{package} {version if right else major}".rstrip())
    what = ", ".join([*here, *([f"no {', '.join(lacking)}"] if lacking else [])])
    return _row(not lacking, what, f"pip install 'gpumem[{name}]'")


def _findings() -> dict[str, Finding]:
    """Packages, driver, devices, libraries."""
    rows = {name: _package(name, hint) for name, hint in PACKAGES.items()}
    if os.environ.get("GPUMEM_KERNEL_COMPILER") == SUCCESSOR:
        rows[SUCCESSOR] = _package(SUCCESSOR, f"pip install {SUCCESSOR}")
    try:
        from gpumem.execute.cuda import probe
    except ImportError:
        names = ("driver", "device", "nvvm", "nvrtc", "nvJitLink", "toolkit")
        return rows | dict.fromkeys(names, _row(False, "unknown without cuda-core", CUDA))
    version, why = probe.driver()
    rows["driver"] = _row(not why, version or why, DRIVER)
    devices = _devices(rows)
    listed = "; ".join(map(str, devices))
    rows["device"] = _row(bool(devices), listed or "none", "a CUDA device that the driver can see")
    if devices:
        rows["copy engines"] = _row(True, "; ".join(str(device.copy_engines) for device in devices), "")
        able = all(device.memory_operations for device in devices)
        rows["stream waits"] = _row(able, "on words in memory" if able else "no", "an older device or driver")
    rows["connections"] = _row(True, probe.connections(), "")
    for name, (what, lacking) in {**probe.libraries(), "toolkit": probe.toolkit()}.items():
        rows[name] = _row(not lacking, what or lacking, CUDA)
    return rows


def _devices(rows: dict[str, Finding]) -> list[Any]:
    if not rows["driver"].ok:
        return []
    from gpumem.execute.cuda import probe

    return probe.facts()


def _link() -> Finding:
    """What pinned copies take, on the first device."""
    from gpumem.execute.cuda import Cuda
    from gpumem.execute.latency import measured_machine
    from gpumem.simulator.machine import Machine

    try:
        with Cuda(timing=True) as backend:
            machine = measured_machine(Machine.named("h100"), backend)
    except Exception as error:
        return _row(False, f"not measured: {error}", "gpumem doctor --no-measure leaves the device alone")
    directions = {"out": machine.out, "in": machine.into}
    rates = (f"{way} {1 / max(link.ns_per_byte, 1e-9):.1f} GB/s" for way, link in directions.items())
    return _row(True, f"{', '.join(rates)} (pinned, 64 MiB)", "")


def _text(findings: Diagnosis) -> str:
    from gpumem.base.version import __version__

    lines = [f"gpumem {__version__}, Python {findings.python}, {findings.system}", "", *_lines(findings.findings)]
    where = "on CUDA" if findings.cuda else f"on the emulator: {findings.why}"
    return "\n".join([*lines, "", "extras", *_lines(findings.extras), "", f"gpumem run works {where}"])


def _lines(rows: dict[str, Finding]) -> list[str]:
    return [
        f"{name:14}{'ok' if row.ok else 'missing':9}{row.what}{row.hint and f'  ->  {row.hint}'}"
        for name, row in rows.items()
    ]


COMMAND = Command(
    "doctor",
    run,
    "say what is here and what is missing",
    (
        option("--no-measure", action="store_true", help="leave the device alone: do not measure its link"),
        option("--json", action="store_true", help="print one JSON object"),
    ),
)
