"""What the fake driver is checked for, in the process that has it: `execute/test_fake_cuda.py` runs `main` there."""

import gc
import json
import sys
import traceback

from cuda.bindings import driver
from cuda.core import Device

from fake_cuda import control
from fake_cuda.checks import faults, gates, graphs, kernels, mapping, memory, order, pools


def main():
    """Run the checks whose names have all of the arguments in them; print what came of each as JSON."""
    Device(0).set_current()
    report(memory, mapping, pools, order, gates, kernels, faults, graphs)


def report(*modules):
    """Do so with the checks of some modules."""
    results = {}
    for module in modules:
        for name, check in vars(module).items():
            if name.startswith("check_") and all(part in name for part in sys.argv[1:]):
                results[name] = outcome(check)
    json.dump(results, sys.stdout)


def outcome(check):
    """Nothing, or the traceback of what the check raised."""
    control.seed(0), control.eager(0), control.queue(0), control.patience(0)
    control.reset_counts()
    failed = None
    try:
        check()
    except Exception:
        failed = traceback.format_exc()
    for _ in range(2):
        driver.cuCtxSynchronize()
        gc.collect()
    if driver.cuCtxSynchronize()[0]:
        control.revive()
    return failed
