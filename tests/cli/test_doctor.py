"""`gpumem doctor`: it says what is there, what is missing, and what to install."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from gpumem.cli import doctor
from tests import fake_cuda
from tests.conftest import Cli, absent, needs

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
LIBRARIES = {"nvvm", "nvrtc", "nvJitLink", "toolkit"}


def bare(requirement: str) -> str:
    """The package that a requirement asks for, with its major version where only one will do."""
    found = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=(\d+)[\d.]*(?:,<(\d+)[\d.]*)?", requirement)
    assert found, requirement
    name, least, below = found.groups()
    return f"{name} {least}" if name == "cuda-python" and int(below) == int(least) + 1 else name


@pytest.mark.skipif(absent("numba_cuda_mlir") == "", reason="it is here")
def test_the_successor_of_the_compiler_is_missed_where_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings"))
    assert "numba-cuda-mlir" not in doctor.why_no_cuda()
    monkeypatch.setenv("GPUMEM_KERNEL_COMPILER", "numba-cuda-mlir")
    assert doctor.why_no_cuda() == "numba-cuda-mlir: not installed; pip install numba-cuda-mlir"


def test_the_doctor(cli: Cli) -> None:
    found = cli("doctor", "--json", "--no-measure").json
    assert found["findings"]["numpy"] == {"ok": True, "what": np.__version__, "hint": ""}
    assert {"driver", "device", "simulator", "cuda-core", "numba-cuda", "connections"} | LIBRARIES <= set(
        found["findings"]
    )
    assert found["cuda"] is (found["why"] == "")
    ran = cli("doctor", "--no-measure")
    assert ran.status == 0 and "gpumem run works on" in ran.out
    for name in [*found["findings"], *found["extras"]]:
        assert re.search(rf"^{name} +(ok|missing)  ", ran.out, re.M), name


def test_no_extra_and_no_dependency_is_forgotten() -> None:
    extras = {name: tuple(map(bare, wanted)) for name, wanted in PROJECT["optional-dependencies"].items()}
    assert extras == doctor.EXTRAS
    assert set(map(bare, PROJECT["dependencies"])) < set(doctor.PACKAGES)


def test_the_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", not_there)
    found = asdict(doctor.examine())
    assert not found["cuda"] and "pip install 'gpumem[cu13]'" in found["why"]
    assert found["findings"]["numpy"] == {"ok": False, "what": "not installed", "hint": "pip install gpumem"}
    assert found["extras"]["plot"] == {"ok": False, "what": "no matplotlib", "hint": "pip install 'gpumem[plot]'"}


def test_an_extra_that_is_partly_there(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numba-cuda": "0.30.4", "cuda-python": "13.1", "cuda-core": "1.2"}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, ""))
    extras = asdict(doctor.examine())["extras"]
    assert extras["cu13"] == {"ok": True, "what": "numba-cuda 0.30.4, cuda-python 13.1, cuda-core 1.2", "hint": ""}
    assert not extras["cu12"]["ok"] and extras["cu12"]["what"].endswith("cuda-core 1.2, no cuda-python 12")


def test_without_any_package_of_cuda(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpumem.execute.cuda", None)
    found = cli("doctor", "--json").json
    assert not found["cuda"] and found["devices"] == []
    assert all(
        found["findings"][name]["what"] == "unknown without cuda-core" for name in LIBRARIES | {"driver", "device"}
    )


def test_where_the_toolkit_is_and_how_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    needs(absent("cuda.core", "cuda.bindings"))
    from gpumem.execute.cuda import probe

    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
    assert probe.toolkit() == ("/opt/cuda", "")
    assert probe.connections() == "16 (CUDA_DEVICE_MAX_CONNECTIONS)"
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    there, missing = probe.toolkit()
    assert bool(there) is not bool(missing) and there != "/opt/cuda"
    monkeypatch.setattr(probe, "load_nvidia_dynamic_lib", lambda name: 1 / 0)
    assert probe.libraries() == dict.fromkeys(LIBRARIES - {"toolkit"}, ("", "not found (ZeroDivisionError)"))


@pytest.mark.thorough
def test_a_device_is_described_and_its_link_measured() -> None:
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = """
from gpumem.cli.main import main
from gpumem.cli import doctor
from fake_cuda import control
doctor.why_no_cuda = lambda rows: ""  # whether kernels can be compiled here is another question
main(["doctor", "--json", "--no-measure"])
assert not control.count("copies") + control.count("allocations")
main(["doctor", "--json"])
assert control.count("copies") and not control.count("live_pinned")
control.fail("allocation", 1)
main(["doctor", "--json"])
"""
    done = fake_cuda.run(code)
    assert done.returncode == 0, done.stderr
    quiet, measured, failed = map(json.loads, done.stdout.splitlines())
    (device,) = quiet["devices"]
    assert (device["name"], device["capability"], device["memory"], device["copy_engines"]) == (
        "Fake GPU",
        [9, 0],
        2**30,
        3,
    )
    assert quiet["findings"]["copy engines"]["what"] == "3" and "link" not in quiet["findings"]
    assert measured["findings"]["link"]["what"] == "out 16.0 GB/s, in 16.0 GB/s (pinned, 64 MiB)"
    assert not failed["findings"]["link"]["ok"] and failed["findings"]["link"]["what"].startswith("not measured: ")
