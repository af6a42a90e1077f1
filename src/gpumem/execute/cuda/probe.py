"""What of CUDA is here: the driver, the devices, the libraries that compile kernels."""

from __future__ import annotations

from cuda.bindings import driver as api
from cuda.core import Device
from cuda.pathfinder import load_nvidia_dynamic_lib


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
    (status,) = api.cuInit(0)
    if status != api.CUresult.CUDA_SUCCESS:
        return []
    found = []
    for i in range(api.cuDeviceGetCount()[1]):
        device = Device(i)
        _, size = api.cuDeviceTotalMem(api.cuDeviceGet(i)[1])
        capability = device.compute_capability
        found.append(f"{device.name} ({capability.major}.{capability.minor}, {size / 2**30:.1f} GiB)")
    return found


def compiler() -> str:
    """Return which of the libraries that compile kernels is missing, or nothing."""
    missing = []
    for name in ("nvrtc", "nvvm", "nvJitLink"):
        try:
            load_nvidia_dynamic_lib(name)
        except Exception:  # pathfinder has several ways to say that it is not there
            missing.append(name)
    return f"{', '.join(missing)} not found" if missing else ""
