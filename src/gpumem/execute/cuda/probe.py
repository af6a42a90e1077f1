"""What of CUDA is here: the driver, the devices, the libraries that compile kernels, the toolkit."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as api, nvjitlink, nvrtc, nvvm
from cuda.core import Device
from cuda.pathfinder import load_nvidia_dynamic_lib

_VERSIONS: dict[str, Callable[[], tuple[int, int]]] = {
    "nvvm": nvvm.version,
    "nvrtc": lambda: nvrtc.nvrtcVersion()[1:],
    "nvJitLink": nvjitlink.version,
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What matters of a device: memory in bytes, engines that copy, whether streams can wait for words in memory."""

    name: str
    capability: tuple[int, int]
    memory: int
    copy_engines: int
    memory_operations: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.capability[0]}.{self.capability[1]}, {self.memory / 2**30:.1f} GiB)"


def driver() -> tuple[str, str]:
    """Return the driver's CUDA version and, where there is no usable driver, the reason."""
    try:
        (status,) = api.cuInit(0)
        _, version = api.cuDriverGetVersion()
    except RuntimeError:
        return "", "no library libcuda.so.1"
    if status not in (api.CUresult.CUDA_SUCCESS, api.CUresult.CUDA_ERROR_NO_DEVICE):
        return "", f"cuInit: {status.name}"
    return f"CUDA {version // 1000}.{version % 1000 // 10}", ""


def devices() -> list[str]:
    """Return the devices' names, with compute capability and memory."""
    return [str(fact) for fact in facts()]


def facts() -> list[DeviceFacts]:
    """Return what is known of each device, in the driver's order."""
    (status,) = api.cuInit(0)
    if status != api.CUresult.CUDA_SUCCESS:
        return []
    return [_facts(index) for index in range(api.cuDeviceGetCount()[1])]


def _facts(ordinal: int) -> DeviceFacts:
    handle, device = api.cuDeviceGet(ordinal)[1], Device(ordinal)
    engines, operations = (
        api.cuDeviceGetAttribute(getattr(api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)[1]
        for name in ("ASYNC_ENGINE_COUNT", "CAN_USE_64_BIT_STREAM_MEM_OPS")
    )
    capability: Any = device.compute_capability
    memory = int(api.cuDeviceTotalMem(handle)[1])
    return DeviceFacts(device.name, (capability.major, capability.minor), memory, int(engines), bool(operations))


def libraries() -> dict[str, tuple[str, str]]:
    """Return of each library that compiles kernels its version and file and, where it is missing, the reason."""
    return {name: _library(name) for name in _VERSIONS}


def _library(name: str) -> tuple[str, str]:
    try:
        loaded = load_nvidia_dynamic_lib(name)
        major, minor = _VERSIONS[name]()
    except Exception as error:  # pathfinder and the bindings have several ways to say that it is not there
        return "", f"not found ({type(error).__name__})"
    return f"{major}.{minor} in {loaded.abs_path} ({loaded.found_via})", ""


def toolkit() -> tuple[str, str]:
    """Return where a CUDA toolkit is, for what compiles against one, and the reason where there is none."""
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return home, ""
    try:
        return f"{importlib.metadata.version('cuda-toolkit')} in wheels", ""
    except importlib.metadata.PackageNotFoundError:
        nvcc = shutil.which("nvcc")
        return nvcc or "", "" if nvcc else "no CUDA_HOME, no wheels of it, no nvcc"


def connections() -> str:
    """Return how many hardware queues the streams of a process share: as the user has set it, or this package."""
    return f"{os.environ['CUDA_DEVICE_MAX_CONNECTIONS']} (CUDA_DEVICE_MAX_CONNECTIONS)"
