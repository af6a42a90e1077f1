"""`gpumem doctor`: what of CUDA and of the optional packages is here, what is missing, and what would install it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shutil
from typing import Any

from gpumem.commands.parser import Commands

CUDA = "pip install 'gpumem[cu13]' (or [cu12], by the driver)"
PACKAGES = {
    "numpy": "pip install gpumem",
    "numba": "pip install gpumem",
    "msgspec": "pip install gpumem",
    "rich": "pip install gpumem",
    "numba-cuda": CUDA,
    "cuda-core": CUDA,
    "cuda-bindings": CUDA,
    "matplotlib": "pip install 'gpumem[plot]'",
    "torch": "pip install 'gpumem[torch]'",
    "hypothesis": "pip install 'gpumem[test]'",
    "pytest": "pip install 'gpumem[test]'",
}


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser("doctor", help="say what is here and what is missing", description=run.__doc__)
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look for the packages, the driver, the devices and the compiler that CUDA needs, and for optional packages."""
    found = examine()
    print(json.dumps(found) if args.json else _text(found))
    return 0


def examine() -> dict[str, Any]:
    """Return what was found: name -> `ok` (found), `what` (version or reason), `hint` (what installs it)."""
    rows = _found()
    kernels = rows["numba-cuda"]["ok"]
    rows["simulator"] = _row(kernels, "NUMBA_ENABLE_CUDASIM=1 runs kernels on the CPU" if kernels else "none", CUDA)
    cc = shutil.which("cc") or shutil.which("gcc")
    rows["C compiler"] = _row(cc is not None, cc or "none", "install gcc; only the tests with the fake driver use it")
    missing = why_no_cuda(rows)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "found": rows,
        "cuda": not missing,
        "why": missing,
    }


def why_no_cuda(rows: dict[str, dict[str, Any]] | None = None) -> str:
    """Return why programs cannot run on CUDA here, or nothing if they can."""
    rows = _found() if rows is None else rows
    for name in ("cuda-bindings", "cuda-core", "numba-cuda", "driver", "device", "compiler"):
        if not rows[name]["ok"]:
            return f"{name}: {rows[name]['what']}; {rows[name]['hint']}"
    return ""


def _row(ok: bool, what: str, hint: str) -> dict[str, Any]:
    return {"ok": ok, "what": what, "hint": "" if ok else hint}


def _package(name: str, hint: str) -> dict[str, Any]:
    try:
        return _row(True, importlib.metadata.version(name), hint)
    except importlib.metadata.PackageNotFoundError:
        return _row(False, "not installed", hint)


def _found() -> dict[str, dict[str, Any]]:
    """Packages, driver, device, compiler."""
    rows = {name: _package(name, hint) for name, hint in PACKAGES.items()}
    try:
        from gpumem.execute import cuda
    except ImportError:
        return rows | dict.fromkeys(("driver", "device", "compiler"), _row(False, "unknown without cuda-core", CUDA))
    version, why = cuda.driver()
    hint = "install the NVIDIA driver of your system (https://www.nvidia.com/drivers)"
    rows["driver"] = _row(not why, version or why, hint)
    devices = cuda.devices() if not why else []
    rows["device"] = _row(bool(devices), "; ".join(devices) or "none", "a CUDA device that the driver can see")
    lacking = cuda.compiler()
    rows["compiler"] = _row(not lacking, lacking or "nvrtc, nvvm, nvjitlink", CUDA)
    return rows


def _text(found: dict[str, Any]) -> str:
    from gpumem._version import __version__

    lines = [f"gpumem {__version__}, Python {found['python']}, {found['system']}", ""]
    for name, row in found["found"].items():
        mark = "ok" if row["ok"] else "missing"
        lines.append(f"{name:14}{mark:9}{row['what']}" + (f"  ->  {row['hint']}" if row["hint"] else ""))
    where = "on CUDA" if found["cuda"] else f"on the emulator: {found['why']}"
    return "\n".join([*lines, "", f"gpumem run works {where}"])
