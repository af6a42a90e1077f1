"""What pages and the memory behind pools are checked for on the fake driver: `test_pages.py` runs `main` there."""

from cuda.core import Device

from fake_cuda import checks
from fake_cuda.live_checks import mapping


def main():
    """Run the checks whose names have all of the arguments in them; print what came of each as JSON."""
    Device(0).set_current()
    checks.report(mapping)
