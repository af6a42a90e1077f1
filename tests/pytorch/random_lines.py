"""What a line of a random program may do: with tensors of any shape, legal wherever it stands.

A line takes the training that it is of, two tensors and a number that chooses among variants. `LINES` has its kind:

- `SAVES`: a new value; autograd may keep the operands and the result, so nobody writes into them afterwards.
- `LIGHT`: a new value of which autograd keeps nothing, so it may be written into.
- `VIEWS`: a view of the first tensor. `MANY`: one of several that were made at once, which cannot be written into.
- `WRITES`: writes into the first tensor or a view of it. The second one is assigned, and may require a gradient.

Left out is what gives other bits under any dispatch mode: `prod`, `masked_fill` by a tensor that requires a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

KINDS = SAVES, LIGHT, VIEWS, MANY, WRITES = "saves", "light", "views", "many", "writes"
SHARES = {SAVES: 4, LIGHT: 3, VIEWS: 2, MANY: 1, WRITES: 3}  # how often each kind is drawn
Line = Callable[[Any, torch.Tensor, torch.Tensor, int], Any]
LINES: dict[str, tuple[str, Line]] = {}


def fit(x: torch.Tensor, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
    """A tensor's first elements in another shape, repeated where there are too few."""
    if x.shape == shape:
        return x
    flat, size = x.reshape(-1), math.prod(shape)
    if flat.numel() < size:
        flat = flat.repeat(-(-size // flat.numel()))
    return flat[:size].view(shape)


def part(x: torch.Tensor, n: int) -> torch.Tensor:
    """A tensor, or a view of it with more than one element, in which no element is there twice."""
    options = (
        lambda: x,
        lambda: x[1:],
        lambda: x.transpose(0, -1),
        lambda: x[::2],
        lambda: x.view(-1),
        lambda: x[..., 1:],
        lambda: x[-1],
        lambda: x.view(x.shape[::-1]),
        lambda: x.diagonal() if x.dim() > 1 else x[:-1],
        lambda: x.as_strided((x.shape[0] - 1,), (x.stride(0),), x.storage_offset()),
    )
    n %= len(options)
    found = x if n in (4, 7) and not x.is_contiguous() else options[n]()
    return found if found.dim() and found.numel() > 1 else x


def _several(kind: str, lines: dict[str, Line]) -> None:
    LINES.update({name: (kind, line) for name, line in lines.items()})


# values of which autograd keeps something


class Cube(torch.autograd.Function):
    """Keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x * 0.1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 0.3 * x * x


class Squash(torch.autograd.Function):
    """Keeps its output."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class Shift(torch.autograd.Function):
    """Writes into its input."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return grad


class Both(torch.autograd.Function):
    """Returns two values, and which is larger."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        larger = x > y
        ctx.save_for_backward(x, y)
        ctx.mark_non_differentiable(larger)
        return x * y, x - y, larger

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return grads[0] * y + grads[1], grads[0] * x - grads[1]


def graded(t: Any, x: torch.Tensor) -> torch.Tensor:
    """A tensor that requires a gradient."""
    return x if x.requires_grad else x + fit(t.v, x.shape)


def slope(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """The gradient of a gradient."""
    x = graded(t, x)
    z = (x * fit(y, x.shape)).tanh() if n % 2 else x.sigmoid() * x
    (grad,) = torch.autograd.grad(z.sum() if n % 3 else z.square().mean(), x, create_graph=True)
    return x + grad


def checkpointed(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A block whose values are recomputed in the backward pass, with the random numbers that it had."""

    def block(z: torch.Tensor) -> torch.Tensor:
        z = F.linear(t.matrix(z), t.w, t.b)
        z = F.dropout(z, 0.3) if n % 4 > 1 else z
        return z.tanh() * z

    return checkpoint(block, graded(t, x), use_reentrant=bool(n % 2))  # type: ignore[no-any-return]


def hooked(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A value whose hooks keep its gradient, and may put another one in its place."""
    z = graded(t, x) * 1.5
    c = fit(y, z.shape).detach().clone()
    if n % 4 == 0:
        z.register_hook(lambda g: (t.keep(g), g + c)[1])
    elif n % 4 == 1:
        z.register_hook(lambda g: t.keep(g))
    elif n % 4 == 2:
        z.register_hook(lambda g: (t.keep(g), g.mul(0.5))[1])
        z.register_hook(lambda g: (t.keep(g), None)[1])
    else:
        z.retain_grad()
        t.after.append(lambda: t.keep(z.grad))
    return z


def of_module(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A module with a full backward hook, which keeps what it is given."""
    module = (t.net.linear, t.net.norm, t.net.block)[n % 3]
    hook = module.register_full_backward_hook(lambda m, into, out: (t.keep(out[0]), t.keep(into[0]), None)[2])
    t.after.append(hook.remove)
    return module(graded(t, t.matrix(x)))  # type: ignore[no-any-return]


def accumulated(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A parameter whose hook keeps its gradient once that is there, or changes it."""

    def hook(p: torch.Tensor) -> None:
        assert p.grad is not None
        if n % 3 == 1:
            p.grad.mul_(0.5)
        t.keep(p.grad if n % 3 == 2 else p.grad.clone())

    t.after.append(t.v.register_post_accumulate_grad_hook(hook).remove)
    return fit(x, t.v.shape) * t.v


def loss(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A loss, which counts in the end, too."""
    x, y = t.matrix(x), t.matrix(y)
    target = torch.randint(x.shape[1], (x.shape[0],))
    found = (
        lambda: F.cross_entropy(x, target, label_smoothing=0.1 * (n % 2)),
        lambda: F.mse_loss(x, y),
        lambda: F.smooth_l1_loss(x, y.detach()),
        lambda: F.nll_loss(x.log_softmax(1), target),
        lambda: F.binary_cross_entropy_with_logits(x, y.detach().sigmoid()),
        lambda: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        lambda: F.huber_loss(x, y, reduction="none").mean(0).sum(),
    )[n % 7]()
    t.losses.append(found)
    return x + found


def normed(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    x, size = t.matrix(x), t.shape[1]
    return (  # type: ignore[no-any-return]
        lambda: F.layer_norm(x, (size,), t.b, t.b),
        lambda: F.group_norm(x.view(1, *x.shape), 1).view(x.shape),
        lambda: t.net.batch(x),
        lambda: F.normalize(x, dim=n % 2),
        lambda: F.rms_norm(x, (size,), t.b),
        lambda: (x - x.mean(0)) / (x.std(0) + 0.1),
    )[n % 6]()


def convolved(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    x = t.matrix(x)
    one = x.view(1, 1, *x.shape)
    if n % 3 == 0:
        return F.max_pool2d(t.net.conv(one), 3, 1, 1).view(-1, *x.shape)[0]
    if n % 3 == 1:
        return t.net.conv(one).mean(1).view(x.shape)  # type: ignore[no-any-return]
    return F.conv1d(x.unsqueeze(0), fit(y, (x.shape[0], 1, 3)).tanh(), padding=1, groups=x.shape[0])[0]


def activated(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    functions = (torch.relu, F.gelu, F.silu, torch.sigmoid, torch.tanh, F.elu, F.leaky_relu, F.softplus, torch.sin)
    return functions[n % len(functions)](x)


def attended(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    q, k, v = (t.matrix(z)[:, :4].contiguous().view(1, 1, -1, 4) for z in (x, y, F.linear(t.matrix(x), t.w)))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 * (n % 2))[0, 0]


def reduced(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """What sums, extremes and orders have made of a tensor."""
    x = t.matrix(x)
    return (  # type: ignore[no-any-return]
        lambda: x.amax(0, keepdim=True) + x,
        lambda: x.max(dim=1)[0],
        lambda: x.sort(dim=n % 2)[0],
        lambda: x.topk(2, dim=1)[0],
        lambda: x.cumsum(0) / x.shape[0],
        lambda: x.logsumexp(1),
        lambda: x.var(dim=1, keepdim=True) * x,
        lambda: x.norm(dim=0) / x.shape[0],
        lambda: x.softmax(n % 2),
    )[n % 9]()


def index_reduced(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    how = ("amin", "amax", "mean", "prod")[n % 4]
    index = torch.randint(x.shape[0], (x.shape[0],))
    return torch.index_reduce(x, 0, index, fit(y, x.shape), how, include_self=n % 3 == 0)


def gathered(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    x = t.matrix(x)
    some = torch.randint(x.shape[0], (5,))
    return (  # type: ignore[no-any-return]
        lambda: x[some],
        lambda: x.index_select(0, some),
        lambda: x.gather(0, torch.randint(x.shape[0], x.shape)),
        lambda: F.embedding(some, x),
        lambda: x[x.detach() > 0].repeat(2)[:8] if bool((x > 0).sum() > 8) else x.take(some),
        lambda: torch.where(x > t.matrix(y), x, t.matrix(y)),
    )[n % 6]()


def reused(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A tensor that is used several times, by one op or by several."""
    return (  # type: ignore[no-any-return]
        lambda: x * x,
        lambda: x + x,
        lambda: torch.cat([x, x, fit(y, x.shape)]),
        lambda: x.tanh() + x.sigmoid() + x,
        lambda: torch.stack([x, x * 2]).sum(0),
        lambda: (x - x.detach()) * x,
    )[n % 6]()


def drawn(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    return (  # type: ignore[no-any-return]
        lambda: F.dropout(x, 0.5),
        lambda: x * torch.rand_like(x),
        lambda: x * torch.bernoulli(torch.full(x.shape, 0.7)),
        lambda: F.rrelu(x, training=True),
        lambda: x + torch.empty_like(x).normal_(0, 0.1),
        lambda: F.dropout(x, 0.1).mul(torch.randint(2, x.shape)),
    )[n % 6]()


def as_complex(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    z = torch.view_as_complex(fit(x, (x.numel() // 2 or 1, 2)).clone())
    return torch.view_as_real(z * z.conj() * 0.5 if n % 2 else z * 1j).view(-1)


def many_gradients(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    product, difference, larger = Both.apply(x, fit(y, x.shape))
    return product * 0.5 if n % 3 == 0 else difference * larger if n % 3 == 1 else product.tanh() + difference


_several(
    SAVES,
    {
        "linear": lambda t, x, y, n: F.linear(t.matrix(x), t.w, t.b if n % 2 else None),
        "matmul": lambda t, x, y, n: t.matrix(x) @ t.matrix(y).t() @ t.matrix(x) / (t.shape[0] * 2),
        "bilinear": lambda t, x, y, n: torch.einsum("ij,ij,kj->ik", t.matrix(x), t.matrix(y), t.w) * 0.3,
        "multiply": lambda t, x, y, n: x * fit(y, x.shape),
        "divide": lambda t, x, y, n: x / (fit(y, x.shape).abs() + 1),
        "by parameter": lambda t, x, y, n: x * fit(t.v, x.shape),
        "cube": lambda t, x, y, n: Cube.apply(x),
        "squash": lambda t, x, y, n: Squash.apply(x),
        "double": lambda t, x, y, n: x.double().mul(1 / 3).float(),
        "module": lambda t, x, y, n: t.net(graded(t, t.matrix(x))),  # its hook wants such an input
        "slope": slope,
        "checkpoint": checkpointed,
        "hook": hooked,
        "module hook": of_module,
        "accumulated": accumulated,
        "loss": loss,
        "norm": normed,
        "convolution": convolved,
        "activation": activated,
        "attention": attended,
        "reduction": reduced,
        "index_reduce": index_reduced,
        "gather": gathered,
        "reuse": reused,
        "random": drawn,
        "complex": as_complex,
        "several": many_gradients,
    },
)
