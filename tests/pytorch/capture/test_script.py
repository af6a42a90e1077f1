"""A whole script, unmodified: the same peak as its step by `make`, iterations found, ended where it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from gpumem import io
from gpumem.torch import Captured, TrainingScript, WorkloadError, capture, fit, record
from tests.conftest import Cli
from tests.pytorch.capture import makes

pytestmark = pytest.mark.filterwarnings("default")  # what a script is warned of is its own business
TRAINER = ["--output_dir", "out", "--per_device_train_batch_size", "4", "--report_to", "none"]
PLAIN = {
    "plain": ["--batch-size", "32"],
    "accumulating": ["3"],
    "amp": [],
    "like_timm": ["--amp", "--clip-grad", "1", "--model-ema", "-b", "16"],
}
LIBRARIES = {
    "hf_trainer": (TRAINER, ["transformers", "accelerate"]),
    "lightning_fit": ([], ["lightning"]),
    "accelerated": ([], ["accelerate"]),
    "sft_lora": ([], ["trl", "peft", "datasets"]),
}
LOOP = """
    for k in range(100):
        optimizer.zero_grad()
        loss = net(torch.randn(BATCH, 64).to("cuda")).square().mean()
        loss.backward()
        optimizer.step()
"""
NET = """
    import sys, torch
    BATCH = 32
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to("cuda")
    optimizer = torch.optim.AdamW(net.parameters())
"""


def make(batch: int = 32, optimizer_of: Any = torch.optim.AdamW) -> makes.Step:
    """The step of `NET` and `LOOP`."""
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = optimizer_of(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(batch, 64)).square().mean()
        loss.backward()
        optimizer.step()

    return step


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Capture a script from its text."""

    def captured(*parts: str, args: tuple[str, ...] = (), **options: Any) -> Captured:
        file = tmp_path / "train.py"
        file.write_text("".join(map(dedent, parts)))
        return record(TrainingScript(file, args), **options)

    return captured


@pytest.mark.parametrize("name", PLAIN)
def test_a_script_takes_what_its_step_takes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = record(TrainingScript(makes.SCRIPTS / f"{name}.py", PLAIN[name]))
    step = record(getattr(makes, name))
    assert script.trace.peak_live_bytes == pytest.approx(step.trace.peak_live_bytes, rel=0.005)
    assert not script.notes and len(script.bounds) == 2 and not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_script_of_a_library_takes_what_its_step_takes(name: str, tmp_path: Path) -> None:
    """In a process of its own, as libraries keep for good which device there is."""
    args, needs = LIBRARIES[name]
    for module in needs:
        pytest.importorskip(module)
    file = tmp_path / "trace.json.gz"
    command = [
        sys.executable,
        "-m",
        "gpumem",
        "capture",
        "-o",
        str(file),
        "--script",
        str(makes.SCRIPTS / f"{name}.py"),
    ]
    subprocess.run([*command, *args], cwd=tmp_path, check=True, capture_output=True)
    step = record(getattr(makes, name)).trace
    assert io.read(file).peak_live_bytes == pytest.approx(step.peak_live_bytes, rel=0.005)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != file]


def test_it_runs_as_by_itself_and_leaves_nothing_behind(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a_sibling_of_it.py").write_text("WIDTH = 64")
    before = sys.argv, sys.path, sys.modules["__main__"], torch.get_default_dtype(), torch.is_grad_enabled(), sys.stdin
    found = run(
        """
        import pickle, sys
        from pathlib import Path
        import a_sibling_of_it
        class Mine: pass
        assert __name__ == "__main__" and isinstance(pickle.loads(pickle.dumps(Mine())), Mine)
        assert sys.argv == [__file__, "--lr", "0.1"] and sys.path[0] == str(Path(__file__).parent)
        """,
        NET,
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\nassert str(device) == "cuda"\n',
        "torch.set_default_dtype(torch.float64)\nnet.double()\n",
        LOOP,
        args=("--lr", "0.1"),
    )
    assert found.trace.name == "train" and "double" not in found.notes
    assert before == (
        *(sys.argv, sys.path, sys.modules["__main__"], torch.get_default_dtype(), torch.is_grad_enabled(), sys.stdin),
    )
    capture(make)  # which nothing is in the way of


def test_what_is_made_without_a_device_is_on_the_host_but_for_parameters(run: Any) -> None:
    """A data set of 64 MB is not counted; tied weights are one, also where the optimizer is made before it is moved."""
    found = run(
        """
        import torch
        from torch import nn
        data = torch.randn(2**18, 64)
        net = nn.ModuleDict({"a": nn.Linear(64, 64, bias=False), "b": nn.Linear(64, 64, bias=False)})
        net["b"].weight = net["a"].weight
        net.register_buffer("scale", torch.linspace(0, 1, 64))
        drops = [x.item() for x in torch.linspace(0, 0.1, 4)]
        assert abs(drops[-1] - 0.1) < 1e-6 and net.scale.device.type == "cpu"
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.to("cuda")
        for batch in torch.utils.data.DataLoader(data, batch_size=16):
            net["b"](net["a"](batch.cuda()) * net.scale).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    size = found.trace.buffers.size
    assert size.max() == 64 * 64 * 4 and found.trace.peak_live_bytes < 5 * 64 * 64 * 4
    assert size[found.trace.buffers.persistent].sum() == 64 * 64 * 4 + 64 * 4


def test_a_default_device_is_where_it_says(run: Any) -> None:
    found = run("import torch\ntorch.set_default_device('cuda')\n", NET, LOOP.replace('.to("cuda")', ""))
    assert found.trace.peak_live_bytes == capture(make).peak_live_bytes
    assert torch.get_default_device().type == "cpu"


@pytest.mark.parametrize(
    "before",
    [
        # a validation pass
        "with torch.no_grad():\n    print(net(torch.randn(4096, 64).to('cuda')).sum().item())\n",
        # a learning-rate finder, on a copy of the model and with its own optimizer, which stays
        """
        import copy
        trial = copy.deepcopy(net)
        finder = torch.optim.SGD(trial.parameters(), lr=1e-6)
        for k in range(2):
            finder.zero_grad()
            trial(torch.randn(4096, 64).to("cuda")).sum().backward()
            finder.step()
        del trial, finder
        """,
        # a step on a large batch, so that the memory is there
        "net(torch.randn(4096, 64).to('cuda')).sum().backward()\noptimizer.step()\noptimizer.zero_grad()\n",
        # an optimizer that another one takes the place of
        "optimizer = torch.optim.SGD(net.parameters(), lr=1)\noptimizer = torch.optim.AdamW(net.parameters())\n",
        # one that is never used
        "unused = torch.optim.SGD(net.parameters(), lr=1)\n",
    ],
    ids=["validation", "finder", "dummy", "replaced", "unused"],
)
def test_what_goes_before_does_not_confuse_it(run: Any, before: str) -> None:
    found = run(NET, before, LOOP)
    assert found.trace.peak_live_bytes == capture(make).peak_live_bytes and not found.notes


def test_several_optimizers_take_their_turns(run: Any) -> None:
    """A critic steps three times before its generator does once; one pattern of steps is an iteration."""
    text = """
    import torch
    from torch import nn
    device = "cuda"
    generator, critic = nn.Linear(16, 64).to(device), nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 1)).to(device)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.RMSprop(critic.parameters())

    def step(batch=128):
        for _ in range(3):
            with torch.no_grad():
                fake = generator(torch.randn(batch, 16, device=device))
            of_critic.zero_grad()
            (critic(fake).mean() - critic(torch.randn(batch, 64, device=device)).mean()).backward()
            of_critic.step()
        of_generator.zero_grad()
        critic(generator(torch.randn(batch, 16, device=device))).mean().neg().backward()
        of_generator.step()
    """
    found = run(text, "while True:\n    step()\n")

    def gan() -> makes.Step:
        names: dict[str, Any] = {}
        exec(dedent(text), names)
        step: makes.Step = names["step"]
        return step

    expected = record(gan)
    assert found.trace.peak_live_bytes == expected.trace.peak_live_bytes and found.trace.n == expected.trace.n
    assert found.trace.ops.name == expected.trace.ops.name


def test_a_step_in_another_one_is_a_part_of_it(run: Any) -> None:
    """Wrappers step what they wrap, here two times."""
    found = run(
        NET,
        """
        class Twice(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner = inner
            def step(self, closure=None):
                self.inner.step()
                self.inner.step()
        optimizer = Twice(optimizer)
        """,
        LOOP,
    )
    assert [*found.trace.ops.name].count("_foreach_addcdiv_.ScalarList") == 2
    assert found.trace.ops.name.count("addmm.default") == 2


def test_an_optimizer_that_asks_for_the_loss_is_one_step(run: Any) -> None:
    """What its closure does is a forward and a backward pass."""
    found = run(
        NET,
        """
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2, history_size=2)
        data = torch.randn(BATCH, 64, device="cuda")
        def closure():
            optimizer.zero_grad()
            loss = net(data + torch.randn(BATCH, 64, device="cuda")).square().mean()
            loss.backward()
            return loss
        for k in range(100):
            optimizer.step(closure)
        """,
    )
    lo, hi = found.bounds[-1]
    phases = [*zip(found.trace.ops.name, found.phases[lo:hi])]
    assert {phase for name, phase in phases if name == "addmm.default"} == {"forward"}
    assert ("mm.default", "backward") in phases and ("dot.default", "optimizer") in phases


def test_iterations_that_differ_give_the_one_with_the_highest_peak(run: Any) -> None:
    """As of batches padded to their longest text: the last one that counts is the largest seen."""
    sizes = [16, 8, 24, 64, 4, 12, 20, 28, 32, 40, 44, 48]
    validation = "with torch.no_grad():\n    net(torch.randn(4096, 64).to('cuda'))\n"
    found = run(NET, validation, f"sizes = iter({sizes})\n", LOOP.replace("BATCH", "next(sizes)"))
    assert len(found.notes) == 1 and "has operands of other sizes: of 8 iterations this is the one" in found.notes[0]
    alone = capture(make, batch=64).peak_live_bytes
    assert alone <= found.trace.peak_live_bytes <= alone + 20 * 8 * 4


@pytest.mark.parametrize(
    "holds",
    [
        "try:\n    train()\nexcept:\n    print('failed')\nprint('done')\n",
        "try:\n    train()\nexcept Exception:\n    raise SystemExit('failed')\nfinally:\n    torch.save(net, 'a.pt')\n",
        "for k in range(1000):\n    try:\n        train()\n    except:\n        pass\n    finally:\n        k += 1\n",
        "while True:\n    try:\n        train()\n    except BaseException:\n        continue\n",
        "import contextlib\nwhile True:\n    with contextlib.suppress(BaseException):\n        train()\n",
    ],
)
def test_a_script_that_holds_on_is_ended(run: Any, holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = LOOP.replace("\n    ", "\n        ").replace("    for k", "def train():\n        for k")
    trace = sys.gettrace()
    found = run(NET, loop, holds)
    assert found.trace.peak_live_bytes == capture(make).peak_live_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"] and sys.gettrace() is trace


def test_nothing_is_written_and_nobody_is_told(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tensorboardX.py").write_text("class SummaryWriter:\n    def __init__(self, *a): raise OSError\n")
    (tmp_path / "mlflow.py").write_text("def start_run(*a, **k): raise OSError\nlog_metric = start_run\n")
    found = run(
        """
        import os, mlflow
        from tensorboardX import SummaryWriter
        assert os.environ["WANDB_MODE"] == "disabled"
        writer = SummaryWriter("runs")
        """,
        NET,
        """
        torch.save(net.state_dict(), "a.pt")
        with mlflow.start_run(run_name="mine") as mine:
            print(mine.info.run_id)
            writer.add_scalar("loss", 0.0)
            mlflow.log_metric("loss", 0.0)
        """,
        LOOP,
    )
    assert found.trace.n and "WANDB_MODE" not in os.environ
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"tensorboardX.py", "mlflow.py", "train.py"}
    for name in ("mlflow", "tensorboardX"):
        with pytest.raises(OSError):
            getattr(sys.modules.pop(name), {"mlflow": "start_run"}.get(name, "SummaryWriter"))()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise RuntimeError('no data')", "train.py: RuntimeError: no data ("),
        ("def f(:\n    pass", "train.py: SyntaxError: "),
        ("import sys\nsys.exit(3)", "train.py: SystemExit: 3 ("),
        ("import sys\nsys.exit('no GPU')", "train.py: SystemExit: no GPU ("),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--help'])",
            "train.py: ended after 0 optimizer steps",
        ),
        ("name = input('Run name: ')", "train.py: asks for input, and nobody answers ("),
        ("try:\n    input()\nexcept:\n    pass", "train.py: asks for input, and nobody answers ("),
        ("import sys\nprint([*sys.stdin])", "train.py: asks for input, and nobody answers ("),
        ("import sys\nsys.stdin.buffer.read()", "train.py: asks for input, and nobody answers ("),
        ("import getpass\ngetpass.getpass()", "train.py: asks for input, and nobody answers ("),
        ("import pdb\npdb.Pdb().set_trace()\npass", "train.py: asks for input, and nobody answers ("),
        (
            # which of two takes its turn is told by a sequence (Thue's) that repeats nothing three times
            "import torch\nw = [torch.ones(2, requires_grad=True, device='cuda') for _ in range(2)]\n"
            "o = [torch.optim.SGD([x], lr=1) for x in w]\nk = 0\n"
            "while True:\n    try:\n        w[0].sum().backward()\n        k += 1\n"
            "        o[k.bit_count() % 2].step()\n    except Exception:\n        pass",
            "steps of 2 optimizers follow no pattern (",
        ),
        ("pass", "train.py: ended after 0 optimizer steps; it has to train with one of torch.optim"),
        (NET + LOOP.replace("100", "2"), "train.py: ended after 2 optimizer steps; it has to train for 3 iterations"),
        (
            NET + "    try:\n        torch.compile(net)(torch.ones(2, 64))\n    except Exception:\n        pass\n",
            "train.py: ended after 0 optimizer steps; it caught an error: ",
        ),
        (NET + "    net.compile()\n" + LOOP, "what torch.compile made of it cannot be recorded"),
        (NET + "    net = torch.compile(net)\n" + LOOP, "Sequential: what torch.compile made of it cannot be recorded"),
        (NET + LOOP.replace('.to("cuda")', ""), "is on the host, others are on the device"),
        (
            "import torch\nw = torch.ones(2, requires_grad=True)\no = torch.optim.SGD([w], lr=1)\n"
            "for k in range(9):\n    w.sum().backward()\n    o.step()",
            "train.py: an optimizer steps, and no op ran on a GPU; it has to train on 'cuda' (",
        ),
    ],
)
def test_what_is_wrong_with_a_script_is_one_line(cli: Cli, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "train.py").write_text(dedent(text))
    ran = cli("fit", "--script", tmp_path / "train.py")
    assert ran.status == 2 and why in ran.err[-1] and ran.err[-1].startswith("gpumem: error: ")
    assert not ran.out and not any("Traceback" in line for line in ran.err)


def test_what_a_script_cannot_be_asked_for(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(dedent(NET) + dedent(LOOP))
    for words, why in (
        (["--batch", 4, "--script", file], f"{file}: batch 4: a script has its own arguments"),
        (["--largest", "--script", file], f"{file}: a script has its own arguments; largest needs def make(batch=...)"),
        (["--device", "cpu", "--script", file], f"{file}: device 'cpu': a script runs on 'meta'"),
        (["--script", tmp_path / "none.py"], "no such file; expected a Python script"),
        (["--script"], "--script: a file must follow"),
        ([f"{file}:make", "--script", file], f"and --script {file}: one of the two"),
        ([], "FILE.py:make is missing"),
    ):
        assert why in cli.refuses("fit", *words)
    assert "a script runs on one device only" in cli.refuses("capture", "--compare", "--script", file)
    with pytest.raises(TypeError, match=r"make: 'train.py' is a str"):
        record("train.py")  # type: ignore[arg-type]


def test_a_script_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    file, out = tmp_path / "train.py", tmp_path / "trace.json.gz"
    file.write_text(dedent(NET.replace("= 32", "= int(sys.argv[2])")) + "print('hello')\n" + dedent(LOOP))
    ran = cli("fit", "--limit", "1MiB", "--planner", "tensile", "--script", file, "--batch", 256)
    assert ran.status == 0 and ran.out.startswith("train does not fit: needs ") and "hello" in ran.err
    words = "--limit 1MiB --out planned"
    assert ran.out.splitlines()[-1] == f"next: gpumem fit --machine rtx4090 {words} --script {file} --batch 256"
    ran = cli("capture", "-o", out, "--script", file, "--batch", 256)
    assert ran.status == 0 and "2 iterations in" in ran.out
    assert (
        io.read(out).peak_live_bytes
        == capture(make, batch=256).peak_live_bytes
        == fit(TrainingScript(str(file), ["--batch", "256"]), "rtx4090").need.live
    )
    assert repr(TrainingScript("a.py", ["b"])) == "TrainingScript('a.py', ['b'])"


def test_how_many_iterations_are_looked_at(run: Any) -> None:
    for iterations, warmup, bounds in ((2, 1, 2), (1, 0, 1), (3, 2, 4), (12, 1, 12)):
        assert len(run(NET, LOOP, iterations=iterations, warmup=warmup).bounds) == bounds
    with pytest.raises(WorkloadError, match="ended after 100 optimizer steps; it has to train for 201"):
        run(NET, LOOP, iterations=200)


def test_annotations_are_as_the_script_writes_them(run: Any) -> None:
    """What reads them, as a parser of dataclasses does, finds types; a future import here is none of the script's."""
    told = """
        def scaled(x: float) -> float: ...
        assert scaled.__annotations__["x"] is float
    """
    assert run(told, NET, LOOP).trace.n
