"""What kernels from PTX are checked for: `execute/test_fake_cuda_ptx.py` runs `main` in its process."""

from cuda.core import Device

from fake_cuda import checks
from fake_cuda.ptx_checks import blocks, faults, memory, modules, opcodes


def main():
    """Run the checks whose names have all of the arguments in them; print what came of each as JSON."""
    Device(0).set_current()
    checks.report(opcodes, memory, blocks, faults, modules)
