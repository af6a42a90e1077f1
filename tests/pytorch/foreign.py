"""Runs test suites that others wrote three ways, and says which of their tests fail only because they are managed.

The ways: `bare`, as the suite is; `mode`, under a dispatch mode that does nothing, which some tests do not bear and no
manager can be blamed for; `managed`, under `managed(limit, device="cpu")`. Each test function runs in there by itself,
what sets it up and tears it down outside. Begin with

    cd /where/the/suite/lies
    python CHECKOUT/tests/pytorch/foreign.py run test_a.py test_b.py --out results -- --noconftest
    python CHECKOUT/tests/pytorch/foreign.py run test_a.py --out results --ways managed -- --noconftest

which runs `bare`, then under `mode` what passed bare, then managed what passed under it, each in a child that is
started again behind a test that crashed, hung, or left a mode behind; and prints what differs. `--ways managed` does
the last part anew, beside the files that are there. `--limit 1MiB` gives managed runs that limit; a test that cannot be
run in it has the outcome `limit`, which is told apart. `--limit least` counts in a mode what each test's largest op
touches, and gives each test that much; where a run asks for more it gets that, up to `ROUNDS` times. What stands after
`--` are arguments of pytest, such as `-k word`; the suite's own configuration is not read.

    python tests/pytorch/foreign.py compare DIR/bare.jsonl DIR/mode.jsonl DIR/managed.jsonl
    python -m pytest -p tests.pytorch.foreign --foreign managed --foreign-record FILE.jsonl 'test_a.py::test_one'

The first prints the comparison again; the second runs one test, for the traceback and for a debugger. It is a plugin of
pytest then, which needs this checkout on PYTHONPATH; where the suite has a package `tests` of its own, say
`python tests/pytorch/foreign.py pytest --foreign managed ...` instead. Packages that a suite needs belong on
PYTHONPATH, too; so does a copy of `src`, where somebody is at work in this one.

A record has a line as each test begins, and one with what came of it; tests that it has already are not repeated. The
files in a folder of `--out`: WAY.jsonl, and WAY.log, which pytest and the crashes print to.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

WAYS = ("bare", "mode", "managed")
COUNTED = "counted"  # as `mode`, and it counts what ops touch
LIMIT, LEAST = "64GiB", "least"
SECONDS = 120
ROUNDS = 12  # in which a test may ask for a larger limit
POISONED = 70  # the status of a child that a test left unfit for others
LINE = 400  # characters of a message
SHOWN = 3  # tests of a group
FIT = ("passed", "failed", "skipped")
Record = dict[str, dict[str, Any]]


# within a suite: the plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("foreign")
    group.addoption("--foreign", choices=(*WAYS, COUNTED), default=None, help="how test functions run")
    group.addoption("--foreign-record", type=Path, help="JSON lines, to which what came of each test is added")
    group.addoption("--foreign-limit", default=LIMIT, help="of managed tests")
    group.addoption("--foreign-limits", type=Path, help="a JSON file: limits of single tests")
    group.addoption("--foreign-only", type=Path, help="a record: run what passed there")
    group.addoption("--foreign-seconds", type=int, default=SECONDS, help="that a test may take")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.foreign:
        here = str(Path(__file__).resolve().parents[2])
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(here) and here not in str(config.rootpath):
                del sys.modules[name]  # the suite may have a package of that name
        config.pluginmanager.register(Foreign(config.option), "foreign-runs")


class TooSlow(BaseException):
    """A test takes too long; nobody is to catch it."""


class Foreign:
    """Runs tests one way and writes down what came of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.way, self.record, self.seconds = options.foreign, options.foreign_record, options.foreign_seconds
        self.limit, self.limits, self.only = options.foreign_limit, {}, None
        if options.foreign_limits:
            self.limits = json.loads(options.foreign_limits.read_text())
        if options.foreign_only:
            self.only = {test for test, row in read(options.foreign_only).items() if row["outcome"] == "passed"}
        self.done = {*read(self.record)} if self.record and self.record.exists() else set()
        self.row: dict[str, Any] = {}
        self.raised: list[str] = []
        _told(self.raised)
        if self.way != "bare":
            self.once()

    def once(self) -> None:
        """Let what modes import late be there: it takes seconds, and changes what others have."""
        import torch._dynamo

        with self.world(""):
            torch.ones(3).add_(1).sum().item()

    def write(self, row: dict[str, Any]) -> None:
        if self.record:
            with self.record.open("a") as file:
                file.write(json.dumps(row) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what was run already, and what there is no need to run."""
        kept = [x for x in items if x.nodeid not in self.done and (self.only is None or x.nodeid in self.only)]
        config.hook.pytest_deselected(items=[x for x in items if x not in kept] if len(kept) < 1 else [])
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write({"begin": nodeid})
        self.row = {"test": nodeid, "outcome": "passed", "seconds": time.perf_counter()}
        self.raised.clear()
        faulthandler.dump_traceback_later(self.seconds + 30, exit=True)  # where no signal gets through
        _seed()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        part = "obj" if callable(getattr(item, "obj", None)) else "runtest"  # that of a doctest
        body = getattr(item, part)
        setattr(item, part, self.wrapped(body, item.nodeid))
        try:
            return (yield)
        finally:
            setattr(item, part, body)

    def wrapped(self, body: Callable[..., Any], test: str) -> Callable[..., Any]:
        """A test function that runs the way that was asked for."""

        @wraps(body)
        def called(*args: Any, **kwargs: Any) -> Any:
            before = surroundings()
            world = self.world(test)
            try:
                with _within(self.seconds), world:
                    return body(*args, **kwargs)
            except BaseException as error:
                self.row["error"] = described(error)
                raise
            finally:
                self.row |= left(before)
                if self.way == COUNTED:
                    self.row["touched"] = world.most  # type: ignore[attr-defined]

        return called

    def world(self, test: str) -> AbstractContextManager[Any]:
        """What a test function runs in."""
        if self.way == "bare":
            return nullcontext()
        if self.way != "managed":
            return _modes()[self.way]()
        from gpumem.torch import managed

        limit = self.limits.get(test, self.limit)
        return managed(limit, device="cpu", on_exit="device", wait=True, planner="on-demand")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if report.outcome == "failed" and self.row["outcome"] != "error":
            self.row["outcome"] = "failed" if report.when == "call" else "error"
            if call.excinfo is not None and (report.when != "call" or "error" not in self.row):
                self.row["error"] = described(call.excinfo.value)
        elif report.outcome == "skipped" and self.row["outcome"] == "passed":
            self.row["outcome"] = "skipped"
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A part of a test that failed by itself has a report of its own."""
        if report.outcome == "failed" and type(report).__name__ == "SubtestReport":
            crash = getattr(report.longrepr, "reprcrash", None)
            kind, _, message = str(crash.message if crash else report.longreprtext).partition(": ")
            self.row |= {"outcome": "failed", "error": {"kind": kind, "message": first(message), "of": [kind]}}

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        row = self.row
        row["seconds"] = round(time.perf_counter() - row["seconds"], 3)
        if self.raised:
            row["raised"] = [*dict.fromkeys(self.raised)][:5]
        of = row.get("error", {}).get("of", ())
        if row["outcome"] == "failed" and ("TooSlow" in of or "LimitError" in of):
            row["outcome"] = "slow" if "TooSlow" in of else "limit"
        self.write(row)
        if "modes" in row.get("left", ()):
            os._exit(POISONED)


def _told(raised: list[str]) -> None:
    """Let the manager's own exceptions be noted, though the test catches them."""
    from gpumem.runtime.residency.limited_memory import LimitError
    from gpumem.torch.step.workload import WorkloadError

    for kind in (LimitError, WorkloadError):

        def made(self: Exception, *args: Any, made: Any = kind.__init__, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            raised.append(f"{type(self).__name__}: {first(str(self))}")

        kind.__init__ = made  # type: ignore[method-assign,assignment]


def _seed() -> None:
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

    def over(number: int, frame: Any) -> None:
        raise TooSlow(f"more than {seconds} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _modes() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Dispatch modes by their way."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Nothing(TorchDispatchMode):
        """Calls each op."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Counted(TorchDispatchMode):
        """Calls each op, and knows the most bytes that one touched."""

        most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            found = {}
            for x in torch.utils._pytree.tree_leaves((args, kwargs, result)):
                with suppress(Exception):  # it has no storage
                    if isinstance(x, torch.Tensor) and x.device.type == "cpu":
                        found[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
            self.most = max(self.most, sum(found.values()))
            return result

    return {"mode": Nothing, COUNTED: Counted}


OWNERS = (
    *("torch", "torch.Tensor", "torch._C.TensorBase", "torch._C.StorageBase", "torch.UntypedStorage"),
    *("torch.storage.TypedStorage", "torch.nn.Module", "torch.nn.Parameter", "torch.optim.Optimizer"),
    *("torch.autograd", "torch.autograd.graph", "torch.random", "torch.cuda", "torch.compiler", "torch.serialization"),
    *("torch.multiprocessing.reductions", "torch.utils.checkpoint", "torch.utils.dlpack", "torch._tensor_str"),
    *("torch.nn.modules.module", "threading.Thread", "copy", "pickle"),
)


def surroundings() -> dict[str, Any]:
    """What of the process a test may find changed, and is to leave as it was."""
    import torch
    from torch.overrides import _get_current_function_mode_stack

    found: dict[str, Any] = {
        "modes": torch._C._len_torch_dispatch_stack(),
        "function modes": len(_get_current_function_mode_stack()),
        "threads": len(threading.enumerate()),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
    }
    for owner in OWNERS:
        module, _, name = owner.rpartition(".")
        held: Any = sys.modules.get(owner)
        if held is None and module in sys.modules:
            held = getattr(sys.modules[module], name, None)
        if held is None and owner.startswith("torch._C."):
            held = getattr(torch._C, name)
        for key, value in vars(held).items() if held is not None else ():
            if callable(value) or isinstance(value, property):
                found[f"{owner}.{key}"] = value
            elif key.startswith("_global_") and hasattr(value, "__len__"):
                found[f"{owner}.{key}"] = len(value)
    return found


def left(before: dict[str, Any]) -> dict[str, Any]:
    """What a test left: the generator, and what is no longer as it was before."""
    import torch

    after = surroundings()
    changed = [x for x, was in before.items() if after.get(x, was) is not was and after.get(x) != was]
    found: dict[str, Any] = {"left": changed} if changed else {}
    if "modes" not in changed:  # else it might be anything that answers
        found["generator"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
    return found


def described(error: BaseException) -> dict[str, Any]:
    """What there is to say of an exception: also of those behind it, and where it came from."""
    kinds, said, ours, x = [], [], [], error
    while x is not None and type(x).__name__ not in kinds:
        kinds.append(type(x).__name__)
        said.append(first(str(x)))
        ours = [f for f in traceback.extract_tb(x.__traceback__) if "/gpumem/" in f.filename] or ours
        x = x.__cause__ or x.__context__  # type: ignore[assignment]
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (*frames[-1:], *ours[-1:])]
    message = " <- ".join([said[0], *(f"{kind}: {text}" for kind, text in zip(kinds[1:], said[1:]))])
    return {"kind": kinds[0], "message": message, "of": kinds, "where": [*dict.fromkeys(where)]}


def first(text: str) -> str:
    """The first line that says something."""
    return next((line for line in text.splitlines() if line.strip()), "")[:LINE]


# without a suite: what came of it


def read(path: Path) -> Record:
    """What a record says of each test; of one that only began, that it crashed."""
    found: Record = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "begin" in row:
            found[row["begin"]] = {"test": row["begin"], "outcome": "crashed", "error": {"message": "it only began"}}
        else:
            found[row["test"]] = row
    return found


def refusal(row: dict[str, Any]) -> str:
    """The sentence by which a run was refused to a test, if that is why it failed."""
    error = row.get("error", {})
    for told in row.get("raised", ()):
        kind, _, sentence = told.partition(": ")
        if kind == "WorkloadError" and ("WorkloadError" in error.get("of", ()) or sentence in error["message"]):
            return re.sub(r"^.*?: ", "... ", sentence) if ": " in sentence else sentence
    return ""


def group(row: dict[str, Any]) -> str:
    """What tests that fail for the same reason have in common, as far as their messages go."""
    error = row.get("error", {})
    text = f"{error.get('kind', row['outcome'])}: {error.get('message', '')}"
    return re.sub(r"0x[0-9a-f]+|\d[\d.e+-]*", "N", text)[:160]


def judged(bare: Record, mode: Record, run: Record) -> dict[str, Any]:
    """Tests by what came of them: those that fail managed only, and so on."""
    fit = [test for test in run if bare.get(test, {}).get("outcome") == mode.get(test, {}).get("outcome") == "passed"]
    failed = [test for test in fit if run[test]["outcome"] != "passed"]
    refused = {test: why for test in failed if (why := refusal(run[test]))}
    crashed = [test for test in failed if run[test]["outcome"] == "crashed"]
    states = [
        test
        for test in fit
        if run[test]["outcome"] == "passed"
        and bare[test].get("generator") == mode[test].get("generator") != run[test].get("generator")
        and "generator" in run[test]
    ]
    changes = {test: {*run[test].get("left", ())} - {*mode[test].get("left", ())} for test in fit}
    return {
        "tests": len(bare),
        "passed bare": sum(row["outcome"] == "passed" for row in bare.values()),
        "and under a mode": sum(
            row["outcome"] == "passed" for test, row in mode.items() if bare.get(test, {}).get("outcome") == "passed"
        ),
        "of these managed": len(fit),
        "passed": sum(run[test]["outcome"] == "passed" for test in fit),
        "refused": refused,
        "crashed": crashed,
        "limit": [test for test in failed if run[test]["outcome"] == "limit" and test not in refused],
        "failed": [test for test in failed if run[test]["outcome"] not in ("limit", "crashed") and test not in refused],
        "other generator states": states,
        "left changed": {test: sorted(names) for test, names in changes.items() if names},
    }


def compared(bare: Record, mode: Record, run: Record) -> str:
    """The table, and what differs, the most frequent first."""
    found = judged(bare, mode, run)
    lines = [f"{name:24} {x if isinstance(x, int) else len(x):6}" for name, x in found.items()]
    lines += _groups("failed managed", {t: group(run[t]) for t in found["failed"]}, run)
    lines += _groups("crashed managed", {t: group(run[t]) for t in found["crashed"]}, run)
    lines += _groups("beyond the limit", {t: group(run[t]) for t in found["limit"]}, run)
    lines += _groups("refused", found["refused"], run)
    lines += _groups("other generator states", dict.fromkeys(found["other generator states"], "differs"), run)
    lines += _groups("left changed", {t: ", ".join(x) for t, x in found["left changed"].items()}, run)
    return "\n".join(lines)


def _groups(title: str, why: dict[str, str], run: Record) -> list[str]:
    groups = defaultdict(list)
    for test, reason in why.items():
        groups[reason].append(test)
    lines = []
    for reason, tests in sorted(groups.items(), key=lambda x: -len(x[1])):
        lines.append(f"{len(tests):5}  {reason}")
        where = run[tests[0]].get("error", {}).get("where", [])
        lines += [f"         {test}" for test in tests[:SHOWN]]
        lines += [f"         at {'; '.join(where)}"] if where else []
        lines += [f"         noted: {x}" for x in run[tests[0]].get("raised", ())[:1] if title.startswith("failed")]
    return ["", f"{title}: {len(why)}", *lines] if why else []


# the runs


class Runs:
    """Runs a suite's ways in children, into a folder."""

    def __init__(self, suite: list[str], out: Path, limit: str, seconds: int, extra: list[str]) -> None:
        self.suite, self.out, self.limit, self.seconds, self.extra = suite, out, limit, seconds, extra
        out.mkdir(parents=True, exist_ok=True)
        (out / "pytest.ini").write_text("[pytest]\n")  # the suite's own may ask for plugins that are not there

    def all(self, ways: list[str]) -> str:
        """Run these ways; return the comparison."""
        limits: list[str] = ["--foreign-limit", self.limit]
        for way, before in zip(WAYS, ("", "bare", "mode")):
            if way not in ways:
                continue
            only = ["--foreign-only", str(self.file(before))] if before else []
            if way == "managed" and self.limit == LEAST:
                self.one(COUNTED, only)
                self.least(only)
            else:
                self.one(way, [*only, *limits])
        files = [self.file(way) for way in WAYS]
        return compared(*map(read, files)) if all(f.exists() for f in files) else ""

    def file(self, way: str) -> Path:
        return self.out / f"{way}.jsonl"

    def least(self, only: list[str]) -> None:
        """Run managed with what each test's largest op touches, and those that ask for more with that."""
        limits = {test: max(row.get("touched", 1), 1) for test, row in read(self.file(COUNTED)).items()}
        found: Record = {}
        for _ in range(ROUNDS):
            (self.out / "limits.json").write_text(json.dumps(limits))
            self.one("managed", [*only, "--foreign-limits", str(self.out / "limits.json")], {*found})
            found |= read(self.file("managed"))
            again = {test: n for test, row in found.items() if (n := asked(row)) > limits.get(test, 0)}
            if not again:
                break
            limits |= again
            found = {test: row for test, row in found.items() if test not in again}
        self.file("managed").write_text("".join(json.dumps(row) + "\n" for row in found.values()))

    def one(self, way: str, options: list[str], known: set[str] | None = None) -> None:
        """Run one way, again and again as long as a test ends its child; but what is known already."""
        file, log = self.file(way), self.out / f"{way}.log"
        file.write_text("".join(json.dumps({"begin": test}) + "\n" for test in known or ()))
        log.write_text("")
        command = [sys.executable, __file__, "pytest", "--foreign", way, "--foreign-record", str(file), *options]
        command += ["--foreign-seconds", str(self.seconds), "-c", str(self.out / "pytest.ini")]
        command += [f"--rootdir={Path.cwd()}", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += [*self.suite, *self.extra]
        while True:
            with log.open("a") as told:
                status = subprocess.run(command, stdout=told, stderr=told, check=False).returncode
            begun = file.read_text().splitlines()
            if status != POISONED and not (begun and self._crashed(file, begun[-1], status, known or set())):
                break
        if known:
            rows = [line for line in file.read_text().splitlines() if json.loads(line).get("begin") not in known]
            file.write_text("".join(line + "\n" for line in rows))

    def _crashed(self, file: Path, line: str, status: int, known: set[str]) -> bool:
        """Whether a child ended within a test; note it."""
        test = json.loads(line).get("begin", "")
        if not test or test in known:
            return False
        what = signal.Signals(-status).name if status < 0 else f"status {status}"
        row = {"test": test, "outcome": "crashed", "error": {"kind": "crash", "message": what, "of": []}}
        with file.open("a") as told:
            told.write(json.dumps(row) + "\n")
        return True


def asked(row: dict[str, Any]) -> int:
    """The bytes that a test's run asked for, if it was beyond its limit."""
    numbers = re.findall(r"(\d+) bytes", row["error"]["message"]) if row["outcome"] == "limit" else []
    return int(numbers[-1]) if numbers else 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["pytest"]:
        sys.path[:] = [x for x in sys.path if Path(x or ".").resolve() != Path(__file__).resolve().parent]
        sys.path.insert(0, str(Path.cwd()))
        plugin = sys.modules[__name__]
        return int(pytest.main(arguments[1:], plugins=[plugin]))
    extra = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parser = argparse.ArgumentParser(prog="foreign.py")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a suite the three ways, and compare")
    run.add_argument("suite", nargs="+")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--limit", default=LIMIT)
    run.add_argument("--seconds", type=int, default=SECONDS)
    run.add_argument("--ways", default=",".join(WAYS), help="which ways to run; the other files are there already")
    commands.add_parser("compare", help="compare records").add_argument("records", type=Path, nargs=3)
    options = parser.parse_args(arguments[: len(arguments) - len(extra) - ("--" in arguments)])
    if options.command == "run":
        runs = Runs(options.suite, options.out.resolve(), options.limit, options.seconds, extra)
        print(runs.all(options.ways.split(",")))
    else:
        print(compared(*map(read, options.records)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
