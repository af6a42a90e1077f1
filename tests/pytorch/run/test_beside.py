"""A managed step beside what else PyTorch has that looks at tensors, hooks into a step, or reads bytes its own way."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gpumem.torch import managed
from tests.pytorch.managing import HOW, Left, Lesson, bits, differences, left, taught, trace_of, world

STEPS = 12
LATE = 8  # a step that is planned


def same(lesson: Any, percent: int = 60, steps: int = STEPS, planned: bool = True, **how: Any) -> Any:
    """Hold a lesson within a part of its peak against the lesson as it is; return the report."""
    theirs, _ = taught(lesson, steps=steps)
    limit = trace_of(lesson).peak_live_bytes * percent // 100
    before = world()
    mine, manager = taught(lesson, lambda: managed(limit, **{**HOW, "on_exit": "host", **how}), steps)
    assert not differences(before, world())
    assert [name for name in theirs if mine[name] != theirs[name]] == [] and list(mine) == list(theirs)
    report = manager.report()
    assert all(x.peak <= limit for x in report.iterations[1:])
    assert not planned or "planned" in {x.state for x in report.iterations}
    return report


# what a step runs in


class Inside(Lesson):
    """A lesson whose steps run in a context."""

    def __init__(self, net: str, optimizer: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(net, optimizer)
        self.context = context

    def step(self, k: int) -> None:
        with self.context() as found:
            super().step(k)
        if isinstance(found, FlopCounterMode):
            self.said.append(found.get_total_flops())


def doubled(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    return (x * 2, True) if x.is_floating_point() else (x, False)


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(),
    "saved-tensor hooks that copy": lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x),
    "saved-tensor hooks that compute": lambda: torch.autograd.graph.saved_tensors_hooks(
        doubled, lambda x: x[0] / 2 if x[1] else x[0]
    ),
    "saved-tensor hooks to NumPy": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().numpy().copy(), torch.from_numpy
    ),
    "disabled hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("none, please"),
    "flops": lambda: FlopCounterMode(display=False),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "mutation": lambda: torch.autograd.graph.allow_mutation_on_saved_tensors(),
    "one thread": lambda: torch.autograd.set_multithreading_enabled(False),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("context", CONTEXTS)
def test_within(context: str) -> None:
    percent = 150 if "NumPy" in context or context == "mutation" else 70  # somebody has the addresses
    same(Inside("unet", "adam", CONTEXTS[context]), percent, planned=percent < 100)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("context", ["flops", "anomalies", "save_on_cpu"])
def test_around_all_of_it(context: str) -> None:
    """The run is inside, all its steps."""
    lesson = Lesson("gpt", "sgd")
    with CONTEXTS[context]():
        same(lesson)


def test_flops_counted_outside_are_those_of_the_steps() -> None:
    lesson, found = Lesson("unet", "sgd"), []
    for manage in (nullcontext, lambda: managed("60%", **HOW)):
        with FlopCounterMode(display=False) as counter:
            taught(lesson, manage, STEPS)
        found.append(counter.get_total_flops())
    assert found[0] == found[1] > 0


# other kinds of steps


class Words(Lesson):
    """Embeddings whose gradients are sparse."""

    def start(self) -> None:
        super().start()
        self.table = nn.EmbeddingBag(40, 6, mode="sum", sparse=True)
        self.other = nn.Embedding(40, 6, sparse=True)
        self.model = nn.ModuleList([self.table, self.other, nn.Linear(6, 10)])
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, k: int, part: int) -> torch.Tensor:
        x, y = torch.randint(40, (16, 6)), torch.randint(10, (16,))
        return F.cross_entropy(self.model[2](self.table(x).tanh() * self.other(x).sum(1)), y)


@pytest.mark.parametrize("clears", ["first", "last"])
def test_sparse_embeddings(clears: str) -> None:
    lesson = Words("gpt", "sgd", clears=clears)
    theirs, _ = taught(lesson)
    _, manager = taught(lesson, lambda: managed("1GiB", **HOW))
    limit = max(x.peak for x in manager.report().iterations) * 8 // 10
    mine, manager = taught(lesson, lambda: managed(limit, **HOW))
    assert mine == theirs
    rows = manager.report().iterations
    assert all(x.peak <= limit for x in rows[1:]) and sum(x.moved_out for x in rows[2:])


class Rare(Words):
    """An optimizer for sparse gradients, whose ops nobody can size beforehand."""

    def start(self) -> None:
        super().start()
        self.opt = torch.optim.SparseAdam([*self.table.parameters(), *self.other.parameters()])


def test_an_optimizer_of_sparse_gradients() -> None:
    lesson = Rare("gpt", "sgd")
    assert taught(lesson, lambda: managed("8KiB", **HOW))[0] == taught(lesson)[0]


class Searching(Lesson):
    """Training by L-BFGS, whose step calls the model as often as it likes."""

    def start(self) -> None:
        super().start()
        self.opt = torch.optim.LBFGS(self.model.parameters(), lr=0.5, max_iter=4, history_size=3)
        self.batch = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))

    def step(self, k: int) -> None:
        x, y = self.batch

        def closure() -> Any:
            self.opt.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

        self.said.append(self.opt.step(closure).item().hex())


def test_lbfgs() -> None:
    lesson = Searching("unet", "")
    theirs, _ = taught(lesson, steps=STEPS)
    mine, manager = taught(lesson, lambda: managed(60_000, **HOW, on_exit="host"), STEPS)
    assert mine == theirs
    assert all(x.peak <= 60_000 for x in manager.report().iterations)


class Twice(Lesson):
    """Two optimizers that take turns, as those of a GAN."""

    def start(self) -> None:
        super().start()
        self.opts = [
            torch.optim.Adam(self.model.down.parameters(), lr=1e-2, foreach=False),
            torch.optim.SGD([*self.model.middle.parameters(), *self.model.up.parameters()], lr=1e-2, foreach=False),
        ]

    def step(self, k: int) -> None:
        for opt in self.opts:
            self.model.zero_grad()
            loss = self.loss(k, 1)
            loss.backward()
            opt.step()
            self.said.append(loss.item().hex())


def test_two_optimizers() -> None:
    same(Twice("unet", "sgd"), 70)


class Functional(Lesson):
    """Gradients by transforms of functions."""

    def step(self, k: int) -> None:
        x, y = torch.randn(3, 3, 8, 8), torch.randint(10, (3,))
        parameters = dict(self.model.named_parameters())

        def loss(p: Any, x: Any, y: Any) -> Any:
            return F.cross_entropy(torch.func.functional_call(self.model, p, (x,)), y)

        grads, value = torch.func.grad_and_value(loss)(parameters, x, y)
        with torch.no_grad():
            for name, p in parameters.items():
                p -= 0.1 * grads[name]
        each = torch.func.vmap(lambda row: (row.tanh() * 2).sum())(x.flatten(1))
        self.said += [value.item().hex(), each.sum().item().hex()]


class Clipped(Lesson):
    """Clips gradients, averages weights, schedules the learning rate."""

    def start(self) -> None:
        super().start()
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 3)

    def step(self, k: int) -> None:
        self.opt.zero_grad()
        loss = self.loss(k, 0)
        loss.backward()
        self.said.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item().hex())
        self.opt.step()
        self.schedule.step()
        self.average.update_parameters(self.model)

    def left(self) -> Left:
        return super().left() | {f"average {k}": bits(x) for k, x in enumerate(self.average.parameters())}


class Scaled(Lesson):
    """Scales losses."""

    def start(self) -> None:
        super().start()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)

    def step(self, k: int) -> None:
        self.opt.zero_grad()
        loss = self.loss(k, 0)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.said += [loss.item().hex(), self.scaler.get_scale()]


@pytest.mark.parametrize("kind", [Functional, Clipped, Scaled])
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
def test_other_ways_to_train(kind: type[Lesson]) -> None:
    same(kind("unet", "adam"), 70, planned=False)


class Moved(Lesson):
    """Parameters that get other data, in ways that no op tells of."""

    def step(self, k: int) -> None:
        super().step(k)
        p = self.model.up.weight
        if k == LATE:
            p.data = p.data.clone() * 2
        if k == LATE + 1:
            p.data.copy_(torch.full_like(p, 0.1))


def test_parameters_get_other_data() -> None:
    same(Moved("unet", "sgd"))


def test_tensors_that_numpy_owns_or_several_processes_share() -> None:
    class Foreign(Lesson):
        def start(self) -> None:
            super().start()
            self.array = np.arange(4 * 192, dtype=np.float32).reshape(4, 3, 8, 8) / 1000
            self.x = torch.from_numpy(self.array)
            self.common = torch.ones(4, 3, 8, 8).share_memory_()
            self.wide = torch.ones(1, 3, 8, 8).expand(4, 3, 8, 8)

        def loss(self, k: int, part: int) -> torch.Tensor:
            self.array += 0.01
            self.common *= 0.99
            return F.cross_entropy(self.model(self.x + self.common * self.wide), torch.arange(4))

    same(Foreign("unet", "adam"), 80)


# reads that no op tells of, in the middle


def to_bytes(x: Any) -> bytes:
    file = io.BytesIO()
    torch.save(x, file)
    return file.getvalue()


def from_bytes(found: bytes, **how: Any) -> Any:
    return torch.load(io.BytesIO(found), **how)


def at(address: int, x: torch.Tensor) -> bytes:
    return ctypes.string_at(address, x.nbytes)


def weights(lesson: Lesson) -> list[torch.Tensor]:
    found = [p.detach() for p in lesson.model.parameters()]
    return found + [p.grad for p in lesson.model.parameters() if p.grad is not None]


def reloaded(lesson: Lesson) -> Any:
    """All of it goes into a file and comes back, as between two runs."""
    saved = to_bytes({"model": lesson.model.state_dict(), "opt": lesson.opt.state_dict()})
    found = from_bytes(saved)
    lesson.model.load_state_dict(found["model"])
    lesson.opt.load_state_dict(found["opt"])
    return [bits(x) for x in found["model"].values()]


def assigned(lesson: Lesson) -> None:
    state = copy.deepcopy(lesson.model.state_dict())
    lesson.model.load_state_dict({name: x * 1 for name, x in state.items()}, assign=True)
    lesson.opt.param_groups[0]["params"] = [*lesson.model.parameters()]
    lesson.opt.state.clear()


def trained_copy(lesson: Lesson) -> Any:
    """A copy of the model goes its own way."""
    other = copy.deepcopy(lesson.model)
    opt = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(2, 3, 8, 8)).sum().backward()
    opt.step()
    return [bits(x) for x in other.parameters()]


READS: dict[str, Callable[[Lesson], Any]] = {
    "str": lambda lesson: [str(x) for x in weights(lesson)],
    "repr of a module's parameters": lambda lesson: repr([*lesson.model.parameters()]),
    "format": lambda lesson: [f"{x.sum():.7f} {x.flatten()[0]:.7f}" for x in weights(lesson)],
    "tolist": lambda lesson: [x.tolist() for x in weights(lesson)],
    "iteration": lambda lesson: [[float(y) for y in x.flatten()[:3]] for x in weights(lesson)],
    "numpy": lambda lesson: [x.numpy().copy().tobytes() for x in weights(lesson)],
    "numpy, forced": lambda lesson: [p.numpy(force=True).tobytes() for p in lesson.model.parameters()],
    "np.asarray": lambda lesson: [np.asarray(x).tobytes() for x in weights(lesson)],
    "data_ptr": lambda lesson: [at(x.data_ptr(), x) for x in weights(lesson)],
    "storage's data_ptr": lambda lesson: [at(x.untyped_storage().data_ptr(), x) for x in weights(lesson)],
    "dlpack": lambda lesson: [bits(torch.from_dlpack(x)) for x in weights(lesson)],
    "dlpack, old": lambda lesson: [
        bits(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))) for x in weights(lesson)
    ],
    "dlpack to NumPy": lambda lesson: [np.from_dlpack(x).tobytes() for x in weights(lesson)],
    "deepcopy": lambda lesson: [bits(x) for x in copy.deepcopy(lesson.model).parameters()],
    "deepcopy of an optimizer": lambda lesson: [
        bits(x) for s in copy.deepcopy(lesson.opt).state.values() for x in s.values() if torch.is_tensor(x)
    ],
    "copy": lambda lesson: [bits(copy.copy(x) * 1) for x in weights(lesson)],
    "training of a deepcopy": trained_copy,
    "pickle": lambda lesson: [bits(x) for x in pickle.loads(pickle.dumps(lesson.model)).parameters()],
    "save": lambda lesson: [bits(x) for x in from_bytes(to_bytes(lesson.model.state_dict())).values()],
    "save of a view": lambda lesson: [
        bits(from_bytes(to_bytes(x.t() if x.dim() == 2 else x[:1]))) for x in weights(lesson)
    ],
    "save, old": lambda lesson: [bits(x) for x in legacy(lesson)],
    "storage": lambda lesson: [x.untyped_storage().tolist() for x in weights(lesson)],
    "storage's bytes": lambda lesson: [bytes(x.untyped_storage()) for x in weights(lesson)],
    "storage's copy": lambda lesson: [x.untyped_storage().clone().tolist() for x in weights(lesson)],
    "typed storage": lambda lesson: [x.storage().tolist() for x in weights(lesson)],
    "share_memory_": lambda lesson: [x.share_memory_().is_shared() for x in weights(lesson)],
    "a model that is shared": lambda lesson: bool(lesson.model.share_memory()),
    "set_": lambda lesson: [bits(torch.empty(0).set_(x.untyped_storage()) * 1) for x in weights(lesson)],
    "frombuffer": lambda lesson: [
        bits(torch.frombuffer(bytearray(x.numpy().tobytes()), dtype=x.dtype)) for x in weights(lesson)
    ],
    "parameters_to_vector": lambda lesson: bits(nn.utils.parameters_to_vector(lesson.model.parameters())),
    "equal": lambda lesson: [torch.equal(x, x.clone()) for x in weights(lesson)],
    "random state": lambda lesson: torch.set_rng_state(torch.get_rng_state()),
}


def legacy(lesson: Lesson) -> list[torch.Tensor]:
    file = io.BytesIO()
    torch.save(lesson.model.state_dict(), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return [*torch.load(file).values()]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("read", READS)
def test_a_read_in_the_middle(read: str) -> None:
    def between(lesson: Lesson, k: int) -> None:
        if k == LATE:
            found = READS[read](lesson)
            with warnings.catch_warnings():
                lesson.said.append(found if not torch.is_tensor(found) else bits(found))

    # in the middle of a step some of it is off the device: then all is brought back, which may be the whole limit
    lesson = Lesson("unet", "adam", between=between, clears="first")
    theirs, _ = taught(lesson, steps=STEPS)
    before = world()
    mine, _ = taught(lesson, lambda: managed("70%", **HOW, on_exit="host"), STEPS)
    assert not differences(before, world())
    assert [name for name in theirs if mine[name] != theirs[name]] == [] and list(mine) == list(theirs)


@pytest.mark.parametrize("change", [reloaded, assigned])
def test_a_change_between_steps(change: Callable[[Lesson], Any]) -> None:
    class Changed(Lesson):
        def step(self, k: int) -> None:
            if k == LATE:
                self.said.append(change(self))
            super().step(k)

    same(Changed("unet", "adam"), 90)


class Kept(Lesson):
    """Somebody has the address of parameters, in an array or otherwise, and reads and writes there from then on."""

    def step(self, k: int) -> None:
        super().step(k)
        p = self.model.up.weight
        if k == LATE:
            self.array = p.detach().numpy()
            self.address = self.model.out.weight.data_ptr()
            self.twin = torch.from_dlpack(self.model.down[0].weight.detach())
            self.storage = self.model.up.bias.untyped_storage()
        if k > LATE:
            self.said += [self.array.tobytes(), at(self.address, self.model.out.weight), bits(self.twin * 1)]
            self.said.append(bytes(self.storage))
            self.array *= 0.5
            self.twin.mul_(0.5)


def test_somebody_keeps_an_address() -> None:
    same(Kept("unet", "adam"), 70)


@pytest.mark.parametrize("when", [2, 3, LATE])
def test_saved_in_the_middle_and_gone_on_from_there(when: int) -> None:
    """A run that is cut off and begun again from a file goes on as if it had not been."""
    lesson = Lesson("unet", "adam")
    theirs, _ = taught(lesson, steps=STEPS)
    limit = trace_of(lesson).peak_live_bytes * 9 // 10  # what is loaded does not move
    lesson.start()
    with managed(limit, **HOW):
        for k in range(when):
            lesson.step(k)
        saved = to_bytes({"model": lesson.model.state_dict(), "opt": lesson.opt.state_dict()})
        state, said = torch.get_rng_state(), lesson.said
    lesson.start()
    with managed(limit, **HOW):
        found = from_bytes(saved)
        lesson.model.load_state_dict(found["model"])
        lesson.opt.load_state_dict(found["opt"])
        del found
        torch.set_rng_state(state)
        lesson.said = said
        for k in range(when, STEPS):
            lesson.step(k)
    assert lesson.left() == theirs


def test_loaded_tensors_are_mapped_or_not(tmp_path: Any) -> None:
    torch.manual_seed(1)
    torch.save({"w": torch.randn(64, 64)}, tmp_path / "w.pt")
    found = []
    for manage in (nullcontext, lambda: managed(60_000, **HOW)):
        torch.manual_seed(0)
        w = torch.load(tmp_path / "w.pt", mmap=True)["w"]
        v = torch.load(tmp_path / "w.pt")["w"].requires_grad_()
        with manage():
            for _ in range(6):
                loss = ((torch.randn(8, 64) @ w).relu() @ v).square().mean()
                loss.backward()
                with torch.no_grad():
                    v -= v.grad
                    v.grad = None
        found.append(left({"w": w, "v": v}, [loss.item()]))
    assert found[0] == found[1]
