"""numba-cuda's own tests on the fake driver, with its own memory manager and with gpumem's: what passes in one alone?

::

    python -m tests.runtime.emm.foreign                       # its cudadrv, and tests of streams and arrays
    python -m tests.runtime.emm.foreign numba.cuda.tests.cudadrv.test_events
    python -m tests.runtime.emm.foreign --limit 64MiB         # arrays under a memory limit

Exits with 1 where a test passes bare and not with the manager, but for those that Numba itself skips with one. Each
module runs in a process of its own; a test that ends it has died, and the rest of its module runs in the next one.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from tests.fake_cuda import HERE, environment

WHOLE = "numba.cuda.tests.cudadrv"
MORE = ("test_stream_api", "test_cuda_array_interface", "test_device_array_capture", "test_array", "test_array_args")
SECONDS = 300
RUNNER = """
import sys, unittest
unbuffered = open(1, "w", buffering=1, closefd=False)
class Told(unittest.TextTestResult):
    def tell(self, test, came): print("@", test.id(), came, file=unbuffered)
    def startTest(self, test): super().startTest(test); self.tell(test, "began")
    def addSuccess(self, test): super().addSuccess(test); self.tell(test, "passed")
    def addError(self, test, why): super().addError(test, why); self.tell(test, "failed")
    def addFailure(self, test, why): super().addFailure(test, why); self.tell(test, "failed")
    def addSkip(self, test, why): super().addSkip(test, why); self.tell(test, "skipped " + why.replace("\\n", " "))
    def addExpectedFailure(self, test, why): super().addExpectedFailure(test, why); self.tell(test, "passed")
    def addUnexpectedSuccess(self, test): super().addUnexpectedSuccess(test); self.tell(test, "failed")
    def addSubTest(self, test, part, why): super().addSubTest(test, part, why); why and self.tell(test, "failed")
def flat(suite):
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else (test,)
done = set(sys.argv[2:])
tests = flat(unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]))
suite = unittest.TestSuite(test for test in tests if test.id() not in done)
unittest.TextTestRunner(resultclass=Told, verbosity=0).run(suite)
print("@ end of module", file=unbuffered)
"""


def modules(names: list[str]) -> list[str]:
    """Return the modules of tests that some names are, or hold."""
    found = []
    for name in names:
        spec = find_spec(name)
        assert spec is not None, f"{name} is not installed"
        inside = spec.submodule_search_locations or []
        tests = [part.name for part in pkgutil.iter_modules(inside) if part.name.startswith("test_")]
        found += [f"{name}.{part}" for part in tests] if inside else [name]
    return found


def outcomes(module: str, env: dict[str, str], log: Path) -> dict[str, str]:
    """Return what came of each test of a module: passed, failed, skipped, died, hung."""
    came: dict[str, str] = {}
    while True:
        command = [sys.executable, "-c", RUNNER, module, *came]
        ended = "died"
        try:
            done = subprocess.run(command, env=env, cwd=log, capture_output=True, text=True, timeout=SECONDS)
            printed, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as hung:
            printed, errors, ended = _text(hung.stdout), _text(hung.stderr), "hung"
        with (log / f"{module}.log").open("a") as file:
            file.write(errors)
        began = None
        for name, what in re.findall(r"^@ (\S+) (.*)$", printed, re.M):
            began = name if what == "began" else began
            if what != "began" and came.get(name) != "failed":
                came[name] = what
        if "@ end of module" in printed:
            came.pop("end", None)
            return came
        if began is None or began in came:  # it ended outside of any test
            came[f"{module} after {began}"] = ended
            if began is None:
                return came
        else:
            came[began] = ended


def _text(printed: bytes | str | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""


def run(names: list[str], log: Path, jobs: int, **env: str) -> dict[str, str]:
    """Run modules on the fake driver, and return what came of each of their tests."""
    log.mkdir(parents=True, exist_ok=True)
    for old in log.glob("*.log"):
        old.unlink()
    quiet = {"FAKE_CUDA_PAGEABLE": "1", "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_CUDA_TEST_BIN_DIR": str(log)}
    full = environment(
        PYTHONPATH=os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]), **quiet, **env
    )
    with ThreadPoolExecutor(jobs) as pool:
        told = [*pool.map(lambda name: outcomes(name, full, log), names)]
    return {test: what for one in told for test, what in one.items()}


def main() -> int:
    """Run both, print what differs, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="modules or packages of tests")
    parser.add_argument("--limit", help="have arrays under a memory limit")
    parser.add_argument("--out", type=Path, default=Path("foreign"), help="a folder for what the tests print")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    out = given.out.absolute()
    chosen = modules(given.names or [WHOLE, *(f"numba.cuda.tests.cudapy.{name}" for name in MORE)])
    ours = {"NUMBA_CUDA_MEMORY_MANAGER": "gpumem.runtime.emm"} | ({"GPUMEM_LIMIT": given.limit} if given.limit else {})
    bare = run(chosen, out / "bare", given.jobs)
    managed = run(chosen, out / "managed", given.jobs, **ours)
    worse = []
    for test in sorted(bare.keys() | managed.keys()):
        before, after = bare.get(test, "absent"), managed.get(test, "absent")
        if before.split()[0] != after.split()[0]:
            print(f"{before.split()[0]:8} {after:8} {test}")
            if before == "passed" and not after.startswith("skipped"):
                worse.append(test)
    for name, came in (("bare", bare), ("managed", managed)):
        print(f"{name}:", ", ".join(f"{n} {what}" for what, n in Counter(x.split()[0] for x in came.values()).items()))
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
