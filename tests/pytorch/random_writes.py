"""More lines of random programs: what keeps nothing, views, and assignments into them; see `random_lines`."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch.nn import functional as F

from tests.pytorch.random_lines import LIGHT, LINES, MANY, SAVES, VIEWS, WRITES, Cube, Line, Shift, fit, part


def _several(kind: str, lines: dict[str, Line]) -> None:
    LINES.update({name: (kind, line) for name, line in lines.items()})


# values of which autograd keeps nothing


def resized(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """Memory of one's own that grows, or is another's from then on."""
    room = torch.ones(3)
    if n % 2:
        room.resize_(x.shape).copy_(x.detach())
    else:
        room.set_(x.detach() + 1)  # type: ignore[call-overload]
    return x + room


def sampled(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """An evaluation without gradients, of which numbers are read."""
    with torch.inference_mode() if n % 2 else torch.no_grad():
        score = F.linear(t.matrix(x), t.w).relu()
        t.say(float(score.detach().sum()))
        t.keep(score[0] if n % 4 > 1 else score.mean(0))
    return x + 0.5


def buffered(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A buffer that the forward pass writes."""
    mean = t.matrix(x).detach().mean(0)
    net = t.net
    if n % 3 == 0:
        net.average.mul_(0.9).add_(mean, alpha=0.1)
    elif n % 3 == 1:
        net.average.copy_(0.8 * net.average + 0.2 * mean)
    else:
        net.average = net.average * 0.7 + mean * 0.3
    net.seen += 1
    return t.matrix(x) - net.average


def pooled(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """Tensors of one's own that outlast an iteration, and are written into."""
    if len(t.pool) < 3:
        t.pool.append(x.detach().clone())
    else:
        own = t.pool[n % 3]
        own.mul_(0.5).add_(fit(x, own.shape).detach())
        if n % 2:
            own[:1] = 0.25
    return x + fit(t.pool[-1], x.shape).clone()


def copied(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """Copies that no op makes: pickled, or deep."""
    if n % 2:
        t.keep(copy.deepcopy(x.detach()))
    else:
        file = io.BytesIO()
        torch.save({"x": x.detach(), "v": t.v}, file)
        file.seek(0)
        t.keep(torch.load(file)["x"])
    return x + fit(y, x.shape)


def own_leaf(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A leaf of this iteration, whose gradient is kept."""
    leaf = x.detach().clone().requires_grad_()
    t.after.append(lambda: t.keep(leaf.grad))
    return x + leaf


def read(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """Numbers that the program sees."""
    t.say(x.sum().item() if n % 3 else float(x.detach().reshape(-1)[0]))
    if n % 4 == 3:
        t.say(int((x > 0).sum()))
    return x.clone()


def kept(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """A tensor that outlasts the iteration: as it is, with its graph; without; a view of it; or a copy."""
    t.keep((x, x.detach(), x.detach()[:1], x.detach().clone())[n % 4])
    return x * 0.9


def earlier(t: Any, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    """Something that was kept before, maybe in another iteration."""
    found = t.kept[n % len(t.kept)] if t.kept else None
    return x.clone() if found is None or found.is_inference() else x + fit(found.detach(), x.shape)


_several(
    LIGHT,
    {
        "add": lambda t, x, y, n: x + fit(y, x.shape),
        "subtract": lambda t, x, y, n: x - fit(y, x.shape) * 0.5,
        "scale": lambda t, x, y, n: x * 2 if n % 2 else -x / 3,
        "concatenate": lambda t, x, y, n: torch.cat([x, fit(y, x.shape)], n % x.dim())[: x.shape[0]].clone(),
        "stack": lambda t, x, y, n: torch.stack([x.reshape(-1)[:64], fit(y, (x.numel(),))[:64]], n % 2),
        "rows": lambda t, x, y, n: torch.stack([a + b for a, b in zip(x[:5].unbind(), fit(y, x.shape)[:5].unbind())]),
        "chunks": lambda t, x, y, n: torch.cat([c * 0.5 for c in x.chunk(2)]),
        "mean": lambda t, x, y, n: x + x.mean(0, keepdim=True),
        "roll": lambda t, x, y, n: x.roll(1, 0) if n % 2 else x.flip(0),
        "contiguous": lambda t, x, y, n: x.transpose(0, -1).clone(memory_format=torch.contiguous_format),
        "pad": lambda t, x, y, n: F.pad(x, (1, 0))[..., :-1].contiguous(),
        "detached": lambda t, x, y, n: x.detach() + fit(y, x.shape),
        "fresh": lambda t, x, y, n: torch.randn(x.shape) * 0.1,
        "parameter": lambda t, x, y, n: t.v.view(t.v.shape[::-1])[1:] * 1,
        "out of place": lambda t, x, y, n: x.index_fill(0, t.index(x, 2), 0.5) + 0,
        "resize": resized,
        "evaluation": sampled,
        "buffer": buffered,
        "pool": pooled,
        "copy": copied,
        "leaf": own_leaf,
        "read": read,
        "keep": kept,
        "earlier": earlier,
    },
)
_several(SAVES, {"shift": lambda t, x, y, n: Shift.apply(x.clone()) * Cube.apply(x)})
_several(
    VIEWS,
    {
        "view": lambda t, x, y, n: part(x, 4 if n % 2 else 7),
        "transpose": lambda t, x, y, n: x.transpose(0, -1),
        "slice": lambda t, x, y, n: part(x, 1 if n % 2 else 3),
        "columns": lambda t, x, y, n: part(x, 5),
        "row": lambda t, x, y, n: part(x, 6),
        "diagonal": lambda t, x, y, n: part(x, 8),
        "as_strided": lambda t, x, y, n: part(x, 9),
        "unsqueeze": lambda t, x, y, n: x.unsqueeze(n % 2) if x.dim() < 3 else part(x, 6),
        "same": lambda t, x, y, n: x.view_as(x),
        "alias": lambda t, x, y, n: x.detach(),
        "unfold": lambda t, x, y, n: x.narrow(0, 0, max(x.shape[0] // 2, 1)),
    },
)
_several(
    MANY,
    {
        "chunk": lambda t, x, y, n: x.chunk(2)[-1],
        "unbind": lambda t, x, y, n: x.unbind()[0] if x.dim() > 1 and x[0].numel() > 1 else x.split(1)[0],
        "split": lambda t, x, y, n: x.split(max(x.shape[-1] // 2, 1), -1)[0],
        "expand": lambda t, x, y, n: x[:1].expand(3, *x.shape[1:]),
    },
)


# assignments


def masked(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(x.shape) > 0.5


def by_rows(t: Any, z: torch.Tensor, y: torch.Tensor, n: int) -> None:
    """`index_put_`, `index_copy_`, `index_add_`, `scatter_`, `scatter_add_` along the first dimension."""
    index = t.index(z, 1 + n % 3)
    rows = fit(y, (len(index), *z.shape[1:]))
    if n % 6 == 0:
        z.index_put_((index,), rows, accumulate=False)
    elif n % 6 == 1:
        z.index_put_((torch.cat([index, index]),), torch.cat([rows, rows * 2]), accumulate=True)
    elif n % 6 == 2:
        z.index_copy_(0, index, rows)
    elif n % 6 == 3:
        z.index_add_(0, torch.cat([index, index[:1]]), torch.cat([rows, rows[:1]]), alpha=0.5)
    else:
        spread = index.view(-1, *[1] * (z.dim() - 1)).expand(rows.shape)
        (z.scatter_ if n % 6 == 4 else z.scatter_add_)(0, spread, rows)


def by_place(t: Any, z: torch.Tensor, y: torch.Tensor, n: int) -> None:
    """`put_`, counted in all elements."""
    places = torch.randperm(z.numel())[: 1 + n % 12]
    z.put_(places, fit(y, places.shape), accumulate=bool(n % 2))


def by_mask(t: Any, z: torch.Tensor, y: torch.Tensor, n: int) -> None:
    mask = masked(z)
    if n % 3 == 0:
        z.masked_scatter_(mask, fit(y, z.shape))
    elif n % 3 == 1:
        z[mask] = fit(y, (int(mask.sum()),)) if mask.any() else 0.0
    else:
        z.masked_fill_(mask, 0.5)


def by_item(t: Any, z: torch.Tensor, y: torch.Tensor, n: int) -> None:
    """`z[...] = `: an index, a tensor of indices, slices, a number."""
    if n % 5 == 0:
        z[0] = fit(y, z[0].shape)
    elif n % 5 == 1:
        index = t.index(z, 2)
        z[index] = fit(y, (len(index), *z.shape[1:]))
    elif n % 5 == 2:
        z[::2] = fit(y, z[::2].shape)
    elif n % 5 == 3:
        z[..., -1] = fit(y, z[..., -1].shape)
    else:
        z[:1] = 0.25


def in_place(t: Any, z: torch.Tensor, y: torch.Tensor, n: int) -> None:
    """Ops in place that keep nothing of what was there."""
    if n % 7 == 0:
        z.add_(fit(y, z.shape), alpha=0.5)
    elif n % 7 == 1:
        z.mul_(1.5)
    elif n % 7 == 2:
        z.sub_(fit(y, z.shape))
    elif n % 7 == 3:
        z.copy_(fit(y, z.shape))
    elif n % 7 == 4:
        z.zero_()
    elif n % 7 == 5:
        z.lerp_(fit(y, z.shape), 0.5)
    else:
        z.mul_(fit(y, z.shape).detach().clone())


def unlearned(t: Any, z: torch.Tensor, y: torch.Tensor, n: int) -> None:
    """Written where no gradient is asked for."""
    with torch.no_grad():
        z[:1] = fit(y, z[:1].shape)
        z.add_(0.125)


_several(
    WRITES,
    {
        "write rows": by_rows,
        "write places": by_place,
        "write a mask": by_mask,
        "write items": by_item,
        "write": in_place,
        "write a fill": lambda t, z, y, n: z.index_fill_(n % z.dim(), t.index(z.transpose(0, n % z.dim()), 2), 0.5),
        "write a draw": lambda t, z, y, n: (
            z.normal_(0, 0.1) if n % 3 == 0 else z.uniform_() if n % 3 == 1 else z.fill_(0.5)
        ),
        "write unlearned": unlearned,
    },
)
