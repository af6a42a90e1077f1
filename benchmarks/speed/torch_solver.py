"""What do compiled nets hold over activation memory budgets, by PyTorch's own solver and by ours? Needs PyTorch."""

from __future__ import annotations

import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # or the profiler greets on standard error
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config, partitioners
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed._bench import header
from gpumem.torch import solver

BUDGETS = [step / 20 for step in range(1, 21)]
FEW = BUDGETS[::5]
MB = 1e6


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, n: int, heads: int, drop: float = 0.0) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.ln1, self.ln2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.ln2(x))))
        return F.dropout(x, self.drop) if self.drop else x


class Residual(nn.Module):
    """A block of a ResNet; `norm` is the normalisation."""

    def __init__(self, n: int, m: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(n, m, 3, stride, 1, bias=False), norm(m)
        self.conv2, self.norm2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), norm(m)
        self.short = nn.Conv2d(n, m, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


class UNet(nn.Module):
    """A U-Net of three levels."""

    def __init__(self, n: int = 16, levels: int = 3) -> None:
        super().__init__()
        wide = [n << i for i in range(levels + 1)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *wide], wide))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in wide[-2::-1])
        self.join = nn.ModuleList(_twice(2 * a, a) for a in wide[-2::-1])

    def forward(self, x: Any) -> Any:
        left = []
        for down in self.down[:-1]:
            left.append(down(x))
            x = F.max_pool2d(left[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([left.pop(), up(x)], 1))
        return x


def _twice(n: int, m: int) -> nn.Module:
    convs = [nn.Conv2d(n, m, 3, padding=1), nn.GroupNorm(4, m), nn.SiLU()]
    return nn.Sequential(*convs, nn.Conv2d(m, m, 3, padding=1), nn.GroupNorm(4, m), nn.SiLU())


def _resnet(norm: Callable[[int], nn.Module], count: int = 6) -> nn.Module:
    shapes = [(32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    stem = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), norm(32), nn.ReLU()]
    blocks = [Residual(*shape, norm) for shape in shapes[:count]]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shapes[count - 1][1], 10))


def _free(n: int) -> nn.Module:
    return nn.BatchNorm2d(n, track_running_stats=False)


NETS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "gpt": ("6 blocks of GPT-2", lambda: nn.Sequential(*[Block(64, 4) for _ in range(6)]), (4, 128, 64)),
    "resnet": ("6 residual blocks, batch norm without running statistics", lambda: _resnet(_free), (8, 3, 32, 32)),
    "unet": ("3 levels, group norm", UNet, (2, 3, 64, 64)),
    "gpt_drop": (
        "2 blocks of GPT-2 with dropout",
        lambda: nn.Sequential(*[Block(64, 4, 0.1) for _ in range(2)]),
        (4, 128, 64),
    ),
    "resnet_bn": ("batch norm with running statistics", lambda: _resnet(nn.BatchNorm2d, 3), (8, 3, 32, 32)),
}


class Counter(TorchDispatchMode):
    """Counts the storages that live after each op, by weak references."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: dict[int, Any] = {}
        self.held = self.peak = 0

    def see(self, *tensors: Any) -> None:
        """Count the storages of tensors until they die."""
        for x in torch.utils._pytree.tree_leaves(tensors):
            if isinstance(x, torch.Tensor) and (key := x.untyped_storage()._cdata) not in self.refs:
                size = x.untyped_storage().nbytes()
                self.held += size
                self.refs[key] = weakref.ref(x.untyped_storage(), lambda _, k=key, n=size: self.gone(k, n))
        self.peak = max(self.peak, self.held)

    def gone(self, key: int, size: int) -> None:
        """Count a storage no more."""
        del self.refs[key]
        self.held -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(args, kwargs, result)
        return result


@dataclass
class Ran:
    """One step: bytes by weak references and by the allocator, what is recomputed, whether gradients are right."""

    peak: int
    allocated: int
    recomputed: float
    right: bool
    seconds: float


def run(net: nn.Module, x: torch.Tensor, settings: dict[str, Any], want: list[torch.Tensor]) -> Ran | str:
    """Compile under some settings and take steps: counted by references, then by the allocator. Or say why not."""
    torch._dynamo.reset()
    counter, runtimes, counting = Counter(), [], [True]

    def half(name: str) -> Callable[..., Any]:
        def compiler(module: Any, example: Any) -> Any:
            nodes = [n for n in module.graph.nodes if n.op == "call_function" and n.meta["val"] is not None]
            runtimes.append({n.name: partitioners.estimate_runtime(n) for n in nodes if _makes(n)})
            inner = boxed_nop(module, example)

            def call(arguments: Any) -> Any:
                if not counting:
                    return inner(arguments)
                with counter:
                    return inner(arguments)

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        return compiler

    cut = partitioners.min_cut_rematerialization_partition
    backend = aot_autograd(fw_compiler=half("forward"), bw_compiler=half("backward"), partition_fn=cut)
    try:
        with config.patch(settings):
            step = torch.compile(net, backend=backend, fullgraph=True)
            counter.see(list(net.parameters()), list(net.buffers()), x)
            begin = time.process_time()
            seconds = _step(step, x) - begin
    except RuntimeError as error:
        _gradients(net)
        return str(error).split(":")[0]
    right = all(torch.equal(a, b) for a, b in zip(_gradients(net), want))
    counting.clear()
    allocated = _allocated(net, x, lambda: _step(step, x))
    twice = sum(runtime for name, runtime in runtimes[1].items() if name in runtimes[0])
    return Ran(counter.peak, allocated, twice, right, seconds)


def _step(net: Any, x: torch.Tensor) -> float:
    """Forward and backward; what the net returns is held until the end. Return when the forward was done."""
    torch.manual_seed(0)
    y = net(x)
    loss = y.square().mean()
    forward = time.process_time()
    loss.backward()
    return forward


def _makes(node: Any) -> bool:
    """Whether a node makes what is no view and no item of a tuple."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and "view" not in schema.name and all(r.alias_info is None for r in schema.returns)


def _gradients(net: nn.Module) -> list[torch.Tensor]:
    found = [p.grad for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    return found


def _allocated(net: nn.Module, x: torch.Tensor, step: Callable[[], object]) -> int:
    """Return what the allocator gave out at most, what kernels take for themselves included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    held = peak = sum(t.untyped_storage().nbytes() for t in [x, *net.parameters(), *net.buffers()])
    for size in _sizes(profiled.profiler.kineto_results.experimental_event_tree()):
        held += size
        peak = max(peak, held)
    net.zero_grad()
    return peak


def _sizes(tree: Any) -> Iterator[int]:
    for event in tree:
        if event.name == "[memory]":
            yield event.extra_fields.alloc_size
        yield from _sizes(event.children)


def table(name: str, budgets: list[float]) -> None:
    """Print a net's rows, and what they come to."""
    title, make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(*shape)
    _step(net, x)
    want = _gradients(net)
    print(f"\n{name}: {title}; MB are 10^6 bytes, again is 10^6 flops")
    head = ["budget", "asked", "torch", "alloc", "again", "right", "ours", "alloc", "again", "right", "says", "seconds"]
    print("".join(f"{h:>9}" for h in head) + "  at torch's peak ours runs again")
    known: dict[int, Ran | str] = {}
    _sum_up([_row(net, x, budget, want, known) for budget in budgets])


def _row(
    net: nn.Module, x: torch.Tensor, budget: float, want: list[torch.Tensor], known: dict[int, Ran | str]
) -> tuple[Any, ...]:
    theirs = run(net, x, {"activation_memory_budget": budget}, want)
    asked = solver(budget=budget)
    ours = run(net, x, asked.settings, want)
    chosen = asked.chosen[0]
    assert not isinstance(ours, str), ours
    left = _cells(theirs) if isinstance(theirs, Ran) else f"{'fails':>9}" + " " * 27
    right, last = _cells(ours), f"{chosen.peak / MB:9.2f}{ours.seconds:9.1f}"
    same: Ran | str = ""
    if isinstance(theirs, Ran):
        if theirs.peak not in known:
            known[theirs.peak] = run(net, x, solver(limit=theirs.peak).settings, want)
        same = known[theirs.peak]
    told = f"  {same.recomputed / MB:.3f} in {same.peak / MB:.2f}" if isinstance(same, Ran) else f"  {theirs}"[:70]
    print(f"{budget:9.2f}{chosen.asked / MB:9.2f}{left}{right}{last}{told}", flush=True)
    return budget, chosen, theirs, ours, same


def _cells(r: Ran) -> str:
    return f"{r.peak / MB:9.2f}{r.allocated / MB:9.2f}{r.recomputed / MB:9.3f}{'yes' if r.right else 'NO':>9}"


def _sum_up(rows: list[tuple[Any, ...]]) -> None:
    both = [(theirs, same) for _, _, theirs, _, same in rows if isinstance(theirs, Ran)]
    answers = {
        "budgets at which ours is wrong by a bit": sum(not o.right for _, _, _, o, _ in rows),
        "torch's wrong or failing": sum(isinstance(t, str) or not t.right for _, _, t, _, _ in rows),
        "ours above the bytes asked": sum(o.peak > c.asked for _, c, _, o, _ in rows),
        "torch's above": sum(isinstance(t, Ran) and t.peak > c.asked for _, c, t, _, _ in rows),
        "ours not to the byte what it said": sum(o.peak != c.peak for _, c, _, o, _ in rows),
        "ours rises as the budget falls": _rises([o.peak for _, _, _, o, _ in rows]),
        "torch's rises": _rises([t.peak for t, _ in both]),
        "ours rises by the allocator": _rises([o.allocated for _, _, _, o, _ in rows]),
        "torch's rises by the allocator": _rises([t.allocated for t, _ in both]),
        "at torch's peak ours holds more, or runs more again": sum(
            s.peak > t.peak or s.recomputed > t.recomputed for t, s in both
        ),
    }
    for what, count in answers.items():
        print(f"{count:5}  {what}")


def _rises(peaks: list[int]) -> int:
    return sum(low > high for low, high in itertools.pairwise(peaks))


def main() -> None:
    """Print a table for each net."""
    torch.set_num_threads(1)
    print(header(0))
    print(f"# torch {torch.__version__}, backend aot_eager, on the host")
    for name in sys.argv[1:] or NETS:
        table(name, FEW if name in ("gpt_drop", "resnet_bn") else BUDGETS)


if __name__ == "__main__":
    main()
