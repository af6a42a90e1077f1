"""Command lines as people type them wrong: each is one line that names the value, the place and what would do.

The question is asked of all commands, of what they share (`cli/common`) and of the readers of files.
"""

from __future__ import annotations

import pickle
import re
import shlex
from pathlib import Path

import pytest

from gpumem.io import bundled_path
from tests.conftest import Cli
from tests.files import BAD_AMOUNTS, KINDS, bad_file

# What was typed, and a pattern for all that follows "gpumem: error: ".
USAGE = {
    # commands and options
    "paln": r"COMMAND: 'paln' is unknown; there are fit, capture, .*; did you mean 'plan'\? \(see gpumem --help\)",
    "Plan mlp3": r"COMMAND: 'Plan' is unknown; .*; did you mean 'plan'\? .*",
    "vgg16": r"COMMAND: 'vgg16' is unknown; there are fit, .*",
    "--limit 70%": r"--limit: gpumem has no such option; options follow the command, as in gpumem plan --limit 70% .*",
    "--verson": r"--verson: gpumem has no such option; did you mean '--version'\?; .*",
    "plan --limt 70%": r"--limt: gpumem plan has no such option; did you mean '--limit'\? \(see gpumem plan --help\)",
    "plan --limt=70%": r"--limt: gpumem plan has no such option; did you mean '--limit'\? .*",
    "plan mlp3 --lim 70%": r"--lim: gpumem plan has no such option; did you mean '--limit'\? .*",  # never abbreviated
    "plan mlp3 -limit 70%": r"-limit: gpumem plan has no such option; did you mean '--limit'\? .*",
    "plan mlp3 -v": r"-v: gpumem plan has no such option \(see gpumem plan --help\)",
    "plan mlp3 --limit": r"--limit: a value must follow \(see gpumem plan --help\)",
    "plan mlp3 --limit -70%": r"--limit: a value must follow \(see gpumem plan --help\)",
    "plan mlp3 70%": r"'70%': gpumem plan takes no such argument; did you mean '--limit 70%'\? .*",
    "plan mlp3 resnet18": r"'resnet18': gpumem plan takes no such argument .*",
    "bound mlp3 --limit 70%": r"--limit: gpumem bound has no such option; did you mean '--load-limit'\? .*",
    "doctor --jason": r"--jason: gpumem doctor has no such option; did you mean '--json'\? .*",
    "doctor mlp3": r"'mlp3': gpumem doctor takes no such argument .*",
    "bench pol": r"SUITE: 'pol' is unknown; there are swap, pool, .*, planners, uncertain, peers; did .* 'pool'\? .*",
    "bench --what lowest_limits": r"--what: python -m benchmarks has no such option; options follow the command, .*",
    "--quiet paln": r"COMMAND: 'paln' is unknown; .*; did you mean 'plan'\? .*",
    # files
    "info": r"FILE is missing: trace file, or vgg16, resnet18, mlp3, .*",
    "plan ''": r"FILE: the name is empty",
    "plan vgg19": r"vgg19: No such file or directory; there are vgg16, resnet18, mlp3; did you mean 'vgg16'\?",
    "bound mpl3": r"mpl3: No such file or directory; there are .*; did you mean 'mlp3'\?",
    "info MLP3": r"MLP3: No such file or directory; there are .*; did you mean 'mlp3'\?",
    "pool mlp3_b128": r"mlp3_b128: No such file or directory; there are .*",
    "plan vgg16.json": r"vgg16.json: No such file or directory; did you mean 'vgg16'\?",
    "jobs mlp3 resnet": r"resnet: No such file or directory; there are .*; did you mean 'resnet18'\?",
    "run mpl": r"mpl: No such file or directory; there are mlp, .*, vgg16, resnet18, mlp3; did you mean 'mlp'\?",
    "run resnet81": r"resnet81: No such file or directory; there are mlp, .*; did you mean 'resnet18'\?",
    "info mine": r"mine: No such file or directory; there are .*; did you mean 'mine.json.gz'\?",
    "info mine.json": r"mine.json: No such file or directory; did you mean 'mine.json.gz'\?",
    "swap sub/min.json.gz --limit 70%": r"sub/min.json.gz: No such file .*; did you mean 'sub/mine.json.gz'\?",
    "bench swap ./mne.json.gz": r"./mne.json.gz: No such file or directory; did you mean './mine.json.gz'\?",
    "plan nowhere/mine.json": r"nowhere/mine.json: No such file or directory",
    "plan sub": r"sub: Is a directory",
    "plan planned": r"planned: Is a directory; did you mean 'planned/trace.json.gz'\?",
    "plan ./vgg16": r"./vgg16: Is a directory; the bundled trace is 'vgg16'",
    "plan notes.txt": r"notes.txt: line 1: no column 'id' in 'hello'",
    # amounts
    "plan mlp3 --limit 70": r"--limit: '70' is 70 bytes, next to nothing of 231.70 MiB; did you mean '70%'\?",
    "plan mlp3 --limit 0.7": r"--limit: '0.7' is 0 bytes, next to nothing of 231.70 MiB; did you mean '70%'\?",
    "plan mlp3 --limit 300": r"--limit: '300' is 300 bytes, next to nothing of 231.70 MiB; write a unit, as in 300MiB",
    "swap mlp3 --load-limit .65": r"--load-limit: '.65' is 0 bytes, next to nothing of .*; did you mean '65%'\?",
    "pool mlp3 --capacity 90": r"--capacity: '90' is 90 bytes, next to nothing of .*; did you mean '90%'\?",
    "plan mlp3 --limit '70 x'": r"--limit: unit 'x' of '70 x' is unknown; use B, KiB, MiB, GiB or %",
    "plan mlp3 --limit 70percent": r"--limit: unit 'percent' of '70percent' is unknown; .*; did you mean '70%'\?",
    "plan mlp3 --limit 300MB": r"--limit: unit 'MB' of '300MB' is unknown; use .*; did you mean '300MiB'\?",
    "plan mlp3 --limit 1.5g": r"--limit: unit 'g' of '1.5g' is unknown; use .*; did you mean '1.5GiB'\?",
    "plan mlp3 --limit 1,5GiB": r"--limit: '1,5GiB' is not an amount; .*; did you mean '1.5GiB'\?",
    "plan mlp3 --limit 0": r"--limit: '0' is 0 bytes, it must be at least 1",
    "plan mlp3 --limit -5": r"--limit: '-5' is not an amount; write bytes, 300MiB, 1.5GiB or 70%",
    "plan mlp3 --limit seventy": r"--limit: 'seventy' is not an amount; write bytes, 300MiB, 1.5GiB or 70%",
    "plan mlp3 --threshold huge": r"--threshold: 'huge' is not an amount; write .*",
    "jobs mlp3 --arrive 5x": r"--arrive: '5x' is not a time; write 20us, 1.5ms, 2s or nanoseconds",
    # numbers
    "plan mlp3 --alignment 3.5": r"--alignment: '3.5' is not a whole number \(see gpumem plan --help\)",
    "swap mlp3 --seconds ten": r"--seconds: 'ten' is not a number \(see gpumem swap --help\)",
    "run mlp --batch 0": r"--batch: 0 is below 1",
    "bench tensile --tasks 0": r"--tasks: 0 is not in 1\.\.100",
    # names
    "plan mlp3 --machine gtx1080": r"--machine: 'gtx1080' is unknown; there are .*; did you mean 'gtx1080ti'\?",
    "plan mlp3 --machine 'RTX 2080 Ti'": r"--machine: 'RTX 2080 Ti' is unknown; .*; did you mean 'rtx2080ti'\?",
    "plan mlp3 --machine mine.jsn": r"--machine: 'mine.jsn' is unknown; there are .*",
    "plan mlp3 --planner autoswop": r"--planner: 'autoswop' is unknown; there are .*; did you mean 'autoswap'\?",
    "swap mlp3 --limit 70% --planner a,tensil": r"--planner: 'a' is unknown; there are .*",
    "swap mlp3 --limit 70% --planner tensil": r"--planner: 'tensil' is unknown; .*; did you mean 'tensile'\?",
    "plan mlp3 --score dao": r"--score: 'dao' is unknown; there are doa, .*; did you mean 'doa'\?",
    "plan mlp3 --peaks al": r"--peaks: 'al' is unknown; there are first, all; did you mean 'all'\?",
    "plan mlp3 --pool bestfit": r"--pool: 'bestfit' is unknown; there are .*; did you mean 'best-fit'\?",
    "pool mlp3 --planner gready": r"--planner: 'gready' is unknown; there are .*; did you mean 'greedy'\?",
    "pool mlp3 --allocator cnnmem": r"--allocator: 'cnnmem' is unknown; there are .*; did you mean 'cnmem'\?",
    "run mlp --device emulat": r"--device: 'emulat' is unknown; there are auto, .*; did you mean 'emulate'\?",
    "jobs mlp3 --link glob": r"--link: 'glob' is unknown; there are global, job; did you mean 'global'\?",
    "jobs mlp3 --accounting exakt": r"--accounting: 'exakt' is unknown; .*; did you mean 'exact'\?",
    "bench swap --what lowest_limts": r"--what: 'lowest_limts' is unknown; .*; did you mean 'lowest_limits'\?",
    "bench planners --limits 60%,0%": r"--limits: 0 of the peak live bytes is not in \(0, 100%\]",
    "bench planners --limits 120%": r"--limits: 1.2 of the peak live bytes is not in \(0, 100%\]",
    "bench planners --limits 60": r"--limits: '60' is 6000%; did you mean '60%'\?",
    "bench planners --planner serch": r"--planner: 'serch' is unknown; there are .*bound; did you mean 'search'\?",
    "bench planners --only bond": r"--only: 'bond' is unknown; there are .*; did you mean 'bound'\?",
    "bench planners --jobs 0": r"--jobs: 0 is not in 1..1000",
    "bench planners --results rows.txt": r"--results: 'rows.txt' ends in none of .jsonl",
    "bench planners --results no/x.jsonl": r"no/x.jsonl: cannot write here \(No such folder\)",
    "bench planners --results old.jsonl": r"old.jsonl: format 'gpumem.planners/0' is not 'gpumem.planners/1'; .*",
    "bench planners --results notes.jsonl": r"notes.jsonl: it does not say what it is; it is no results file .*",
    # options that do not go together
    "plan mlp3 --planner autoswap --seed 1": r"--seed: no use to autoswap; it is an option of .*search.*",
    "pool mlp3 --effort 2": r"--effort: no use to best-fit; it is an option of search, exact",
    "swap mlp3": r"give one of --limit, .*, and --load-limit, .*: --limit 70%",
    "run mlp --load-limit 70%": r"--load-limit: a run needs addresses, so only --limit, .*",
    "run mlp3 --batch 3": r"--batch: mlp3 is a trace, its batch is what was recorded",
    "pool mlp3 --out x.txt": r"--out: 'x.txt' ends in none of .csv, .json, .json.gz",
    "plan mlp3 --out ''": r"--out: the name is empty",
    "plan mlp3 --limit 50% --out notes.txt": r"--out: notes.txt: cannot write here \(.*notes.txt is a file, .*\)",
    "bench swap --out notes.txt/x": r"--out: notes.txt/x: cannot write here \(.*notes.txt is a file, .*a folder\)",
    "pool mlp3 --out no/x.csv": r"no/x.csv: cannot write here \(No such folder\)",
    "plan mlp3 --machine ''": r"--machine: the name is empty",
    "plan mlp3 --planner search,autoswap": r"--planner: 'search,autoswap' is more than one; gpumem swap compares .*",
    "run mlp --planner all": r"--planner: 'all' is more than one; gpumem swap compares planners",
    "info mlp3 --json=yes": r"--json: it takes no value, not 'yes' \(see gpumem info --help\)",
    # files of other tools
    "info chrome.json": r"chrome.json: file: no trace \(an object .* buffers, ops\), but a Chrome trace, .*",
    "plan plan.json": r"plan.json: file: no trace .*, but a plan; its trace is trace.json.gz beside it",
    "plan snapshot.json": r"snapshot.json: file: no trace .*, but a snapshot of PyTorch's allocator, .*",
    "plan machine.json": r"machine.json: file: no trace .*, but a machine; give it with --machine",
    "plan snapshot.pickle": r"snapshot.pickle: neither JSON nor CSV text, but a pickle",
    "plan excel.csv": r"excel.csv: line 1: no column 'id' in 'id;lower;upper;size'; commas part the columns",
    "plan mlp3 --machine machine.json": r"machine.json: machine: key: 'bandwith' is .*; did you mean 'bandwidth'\?",
}

OTHERS = {
    "old.jsonl": '{"format": "gpumem.planners/0"}\n',
    "notes.jsonl": "hello",
    "notes.txt": "hello",
    "chrome.json": '{"traceEvents": [], "displayTimeUnit": "ns"}',
    "plan.json": '{"format": "gpumem.plan/1", "trace": "x", "n": 0, "decisions": []}',
    "snapshot.json": '{"segments": [], "device_traces": [[]]}',
    "machine.json": '{"name": "mine", "capacity": 9, "bandwith": 1e9}',
    "excel.csv": "id;lower;upper;size\nx;0;2;4\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies around where people type."""
    folder = tmp_path_factory.mktemp("here")
    for name in ("sub", "vgg16", "mlp3", "planned"):
        (folder / name).mkdir()
    for name in ("mine.json.gz", "sub/mine.json.gz", "planned/trace.json.gz"):
        (folder / name).symlink_to(bundled_path("mlp3"))
    for name, text in OTHERS.items():
        (folder / name).write_text(text)
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
    return folder


@pytest.mark.parametrize("typed", USAGE)
def test_a_wrong_line_says_what_would_do(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.chdir(folder)
    line = cli.refuses(*shlex.split(typed))
    assert re.fullmatch(f"gpumem: error: {USAGE[typed]}", line), line


@pytest.mark.parametrize("name", ["mlp3", "mlp3_b128_sgd"])
def test_a_bundled_name_wins_over_a_folder_in_every_command(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    assert cli("info", name, "--json").json[0]["name"] == "mlp3_b128_sgd"
    assert cli("pool", name, "--json").json[0]["buffers"] == 35
    assert cli("plan", name, "--limit", "150%", "--json").json["trace"] == "mlp3_b128_sgd"
    for command in ("swap", "bound", "jobs", "run"):  # the amount is read once the trace is
        option = "--load-limit" if command == "bound" else "--limit"
        assert "next to nothing of 231.70 MiB" in cli(command, name, option, "70").err[-1]


def test_a_path_is_the_file(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert cli("info", "./mine.json.gz", "--json").json[0]["file"] == "./mine.json.gz"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_one_line_that_names_it(cli: Cli, tmp_path: Path, kind: str) -> None:
    path, out = bad_file(tmp_path, kind), tmp_path / "out"
    for args in (
        ("plan", path, "--limit", "70%", "--out", out),
        ("pool", path, "--out", tmp_path / "out.csv"),
        ("pool", bundled_path("mlp3"), path),
        ("info", path),
    ):
        assert cli.refuses(*args).startswith(f"gpumem: error: {path}: ")
    assert {p.name for p in tmp_path.iterdir()} <= {path.name}


@pytest.mark.parametrize("text", BAD_AMOUNTS)
def test_a_bad_amount_is_one_line_that_names_option_and_value(cli: Cli, net_file: Path, text: str) -> None:
    options = {"--limit": "plan", "--load-limit": "plan", "--capacity": "pool"}
    for option, command in options.items():
        line = cli.refuses(command, net_file, f"{option}={text}")
        assert line.startswith(f"gpumem: error: {option}: ")
        assert repr(text[:40])[:-1] in line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "FILE", "--machine", "gtx"], "gpumem: error: --machine: 'gtx' is unknown; there are gtx1080ti, "),
        (["plan", "FILE", "--machine", "no.json"], "gpumem: error: no.json: No such file or directory"),
        (["plan", "FILE", "--machine", "x" * 5000], "gpumem: error: --machine: 'xxx"),
        (["plan", "FILE", "--machine", "FILE"], "net.json: machine: object missing required field `name`"),
        (["plan", "FILE", "--score", "best"], "gpumem: error: --score: 'best' is unknown; there are doa, aoa, wdoa"),
        (["plan", "FILE", "--score", "doa"], "gpumem: error: --score: no use to search; it is an option of autoswap"),
        (["plan", "FILE", "--peaks", "some"], "gpumem: error: --peaks: 'some' is unknown; there are first, all"),
        (["plan", "FILE", "--planner", "vdnn"], "gpumem: error: --planner: 'vdnn' is unknown; there are autoswap"),
        (["plan", "FILE", "--pool", "worst-fit"], "gpumem: error: --pool: 'worst-fit' is unknown; there are best-fit"),
        (["plan", "FILE", "--pool", "all"], "gpumem: error: --pool: 'all' is unknown"),
        (["plan", "FILE", "--pool", "best-fit,first-fit"], "gpumem: error: --pool: 'best-fit,first-fit' is unknown"),
        (["plan", "FILE", "--alignment", "0"], "gpumem: error: alignment: 0 is not in [1, 2**40]"),
        (["plan", "FILE", "--alignment", "-256"], "gpumem: error: alignment: -256 is not in [1, 2**40]"),
        (["plan", "FILE", "--alignment", str(2**70)], "gpumem: error: alignment: 1180591620717411303424 is not in"),
        (["plan", "FILE", "--alignment", "big"], "gpumem: error: --alignment: 'big' is not a whole number"),
        (["plan", "FILE", "--limit"], "gpumem: error: --limit: a value must follow"),
        (["plan", "FILE", "--out", ""], "gpumem: error: --out: the name is empty"),
        (["plan", "FILE", "FILE"], "gpumem plan takes no such argument"),
        (["plan", "FILE", "--nonsense"], "gpumem: error: --nonsense: gpumem plan has no such option"),
        (["plan", "FILE", "--nonsense=a\nb"], "gpumem: error: --nonsense: gpumem plan has no such option"),
        (["pool"], "gpumem: error: FILE is missing: trace file, or vgg16,"),
        (["pool", "FILE", "--planner", "magic"], "gpumem: error: --planner: 'magic' is unknown; there are best-fit"),
        (["pool", "FILE", "--planner", "best-fit,"], "gpumem: error: --planner: '' is unknown"),
        (["pool", "FILE", "--allocator", "magic"], "gpumem: error: --allocator: 'magic' is unknown; there are native"),
        (["pool", "FILE", "--allocator", ""], "gpumem: error: --allocator: '' is unknown"),
        (["pool", "FILE", "--seed", "1"], "gpumem: error: --seed: no use to best-fit"),
        (["pool", "FILE", "--planner", "search", "--seed", "-1"], "gpumem: error: --seed: -1 is below 0"),
        (["pool", "FILE", "--planner", "search", "--effort", "nan"], "gpumem: error: --effort: nan is not positive"),
        (["pool", "FILE", "--planner", "search", "--seconds", "0"], "gpumem: error: --seconds: 0.0 is not positive"),
        (["pool", "FILE", "--alignment", "0"], "gpumem: error: alignment: 0 is not in [1, 2**40]"),
        (["pool", "FILE", "--out", "x.png"], "gpumem: error: --out: 'x.png' ends in none of .csv, .json, .json.gz"),
        (["pool", "FILE", "--out", ""], "gpumem: error: --out: '' ends in none of"),
        (["pool", "FILE", "FILE", "--out", "x.csv"], "gpumem: error: --out: one placement goes into 'x.csv', but"),
        (["pool", "FILE", "--out", "/nowhere/x.csv"], "error: /nowhere/x.csv: cannot write here (No such folder)"),
        (["info"], "gpumem: error: FILE is missing: trace file, or vgg16,"),
        (["info", "FILE", "--score", "doa"], "gpumem: error: --score: gpumem info has no such option"),
        (["train"], "gpumem: error: COMMAND: 'train' is unknown; there are fit, capture, measure, plan, swap"),
    ],
)
def test_bad_usage_is_one_line(cli: Cli, net_file: Path, args: list[str], message: str) -> None:
    assert message in cli.refuses(*[str(net_file) if a == "FILE" else a for a in args])
