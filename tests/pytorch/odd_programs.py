"""Programs that ask for values, as people write them: sizes, branches and counters that no shape tells. PyTorch only.

Each is a workload, `make(batch, device)`; what is random in them has the same shapes each time. `test_compare` holds
what is captured of `CI` to what runs on the host; `benchmarks/compare_captures` does so for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

Step = Callable[[], object]
Loss = Callable[[int], torch.Tensor]
LENGTHS = (5, 3, 2, 1, 4, 5, 2, 3)


def trained(parameters: Any, loss: Callable[[], torch.Tensor]) -> Step:
    """A step of SGD."""
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def mlp(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(x for a, b in pairwise(sizes) for x in (nn.Linear(a, b), nn.ReLU())))


def lengths_of(batch: int, device: str) -> torch.Tensor:
    return torch.tensor((LENGTHS * batch)[:batch], device=device)


# what is asked of a loss or a gradient


def finite_loss(batch: int = 4, device: str = "cpu") -> Step:
    """A backward pass where the loss is finite."""
    net = mlp(8, 16, 4).to(device)
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        loss = net(torch.randn(batch, 8, device=device)).square().mean()
        if torch.isfinite(loss):
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()

    return step


def not_a_number(batch: int = 4, device: str = "cpu") -> Step:
    """An error where the loss is none."""
    net = mlp(8, 16, 4).to(device)

    def loss() -> torch.Tensor:
        found = net(torch.randn(batch, 8, device=device)).square().mean()
        if torch.isnan(found) or found.item() > 1e9:
            raise ValueError("the loss is not finite")
        return found

    return trained(net.parameters(), loss)


def clipped_with_error(batch: int = 4, device: str = "cpu") -> Step:
    """Gradients are clipped, and must be finite."""
    net = mlp(8, 16, 4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.randn(batch, 8, device=device)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def scaled_gradients(batch: int = 4, device: str = "cpu") -> Step:
    """A GradScaler, which leaves a step out where gradients are not finite."""
    net = mlp(8, 16, 4).to(device)
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler(device)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(net(torch.randn(batch, 8, device=device)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def two_backwards(batch: int = 4, device: str = "cpu") -> Step:
    """Two losses through one graph."""
    net, head = mlp(8, 16).to(device), nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        x = net(torch.randn(batch, 8, device=device))
        x.square().mean().backward(retain_graph=True)
        head(x).square().mean().backward()
        optimizer.step()

    return step


def gradient_penalty(batch: int = 4, device: str = "cpu") -> Step:
    """WGAN's: gradients of gradients."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)

    def loss() -> torch.Tensor:
        x = torch.randn(batch, 8, device=device, requires_grad=True)
        score = net(x)
        (slope,) = torch.autograd.grad(score, x, torch.ones_like(score), create_graph=True)
        return score.mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()

    return trained(net.parameters(), loss)


def two_players(batch: int = 4, device: str = "cpu") -> Step:
    """A GAN: two optimizers, one net's gradients cut off."""
    maker, judge = mlp(4, 8).to(device), nn.Linear(8, 1).to(device)
    optimizers = [torch.optim.Adam(net.parameters()) for net in (maker, judge)]

    def step() -> None:
        made = maker(torch.randn(batch, 4, device=device))
        ones, zeros = torch.ones(batch, 1, device=device), torch.zeros(batch, 1, device=device)
        for optimizer, x, y in ((optimizers[1], made.detach(), zeros), (optimizers[0], made, ones)):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(judge(x), y).backward()
            optimizer.step()

    return step


def by_closure(batch: int = 4, device: str = "cpu") -> Step:
    """Sharpness-aware: the loss is worked out within the optimizer's step, whose number is asked for."""
    net = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.Adam(net.parameters(), amsgrad=True)

    def loss() -> float:
        optimizer.zero_grad()
        found = net(torch.randn(batch, 8, device=device)).square().mean()
        found.backward()
        return found.item()

    return lambda: optimizer.step(loss)


# lengths and indices


def packed(batch: int = 4, device: str = "cpu") -> Step:
    """Sequences of several lengths, packed."""
    net = nn.GRU(6, 8, batch_first=True).to(device)

    def loss() -> torch.Tensor:
        x = torch.randn(batch, 5, 6, device=device)
        lengths = lengths_of(batch, "cpu")
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(net(rows)[0], batch_first=True)
        return out.square().mean()

    return trained(net.parameters(), loss)


def padded(batch: int = 4, device: str = "cpu") -> Step:
    """Sequences of several lengths, padded, and a mask made of the lengths."""
    net = nn.Linear(6, 4).to(device)

    def loss() -> torch.Tensor:
        rows = [torch.randn(n, 6, device=device) for n in (LENGTHS * batch)[:batch]]
        x, lengths = nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths_of(batch, device)
        mask = torch.arange(x.size(1), device=device)[None] < lengths[:, None]
        return net(x)[mask].square().mean()

    return trained(net.parameters(), loss)


def cut_to_the_longest(batch: int = 4, device: str = "cpu") -> Step:
    """A batch is cut to its longest row, and a cell runs so often."""
    cell = nn.GRUCell(6, 8).to(device)

    def loss() -> torch.Tensor:
        lengths = lengths_of(batch, device)
        x = torch.randn(batch, 9, 6, device=device)[:, : lengths.max()]
        h = torch.zeros(batch, 8, device=device)
        for k in range(int(lengths.max().item())):
            h = cell(x[:, k], h)
        return h.square().mean()

    return trained(cell.parameters(), loss)


def split_by_lengths(batch: int = 4, device: str = "cpu") -> Step:
    """Rows of several lengths in one tensor, as variable-length attention has them."""
    net = nn.Linear(6, 4).to(device)

    def loss() -> torch.Tensor:
        lengths = lengths_of(batch, device)
        rows = net(torch.randn(int(lengths.sum()), 6, device=device)).split(lengths.tolist())
        return torch.stack([row.mean(0) for row in rows]).square().mean()

    return trained(net.parameters(), loss)


def repeated_by_counts(batch: int = 4, device: str = "cpu") -> Step:
    """FastSpeech's length regulator, by durations."""
    net = nn.Linear(6, 4).to(device)

    def loss() -> torch.Tensor:
        return net(torch.randn(batch, 6, device=device)).repeat_interleave(lengths_of(batch, device), 0).square().mean()

    return trained(net.parameters(), loss)


def ctc(batch: int = 4, device: str = "cpu") -> Step:
    """CTC, with lengths as tensors."""
    net = nn.Linear(6, 10).to(device)

    def loss() -> torch.Tensor:
        x = net(torch.randn(12, batch, 6, device=device)).log_softmax(-1)
        y = torch.randint(1, 10, (batch, 5), device=device)
        return F.ctc_loss(x, y, torch.full((batch,), 12), lengths_of(batch, "cpu"), zero_infinity=True)

    return trained(net.parameters(), loss)


def labelled_tokens(batch: int = 4, device: str = "cpu") -> Step:
    """Logits of the tokens that have labels, and how many there are."""
    net = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).to(device)

    def loss() -> torch.Tensor:
        tokens = torch.randint(20, (batch, 6)).to(device)
        labels = tokens.clone()
        labels[:, 4:] = -100
        keep = labels != -100
        return F.cross_entropy(net(tokens)[keep], labels[keep], reduction="sum") / keep.sum().item()

    return trained(net.parameters(), loss)


def selected(batch: int = 4, device: str = "cpu") -> Step:
    """`masked_select` by a mask of constants."""
    net = nn.Linear(8, 8).to(device)

    def loss() -> torch.Tensor:
        mask = torch.ones(batch, 8, device=device).tril().bool()
        return net(torch.randn(batch, 8, device=device)).masked_select(mask).square().mean()

    return trained(net.parameters(), loss)


def other_pairs(batch: int = 4, device: str = "cpu") -> Step:
    """A contrastive loss: similarities beside the diagonal."""
    net = nn.Linear(8, 4).to(device)

    def loss() -> torch.Tensor:
        x = F.normalize(net(torch.randn(batch, 8, device=device)), dim=1)
        alike = x @ x.T
        return alike[~torch.eye(batch, dtype=torch.bool, device=device)].view(batch, batch - 1).logsumexp(1).mean()

    return trained(net.parameters(), loss)


def pairs_of_features(batch: int = 4, device: str = "cpu") -> Step:
    """DLRM's interactions."""
    net = nn.Linear(8, 8).to(device)

    def loss() -> torch.Tensor:
        x = net(torch.randn(batch, 5, 8, device=device))
        i, j = torch.tril_indices(5, 5, -1, device=device)
        return (x @ x.mT)[:, i, j].square().mean()

    return trained(net.parameters(), loss)


def prototypes(batch: int = 4, device: str = "cpu") -> Step:
    """A prototype for each class that the labels have."""
    net = nn.Linear(8, 4).to(device)

    def loss() -> torch.Tensor:
        y = (torch.arange(batch) % 3).to(device)
        x, total = net(torch.randn(batch, 8, device=device)), torch.zeros((), device=device)
        for label in y.unique():
            total = total + (x[y == label] - x[y == label].mean(0)).square().sum()
        return total

    return trained(net.parameters(), loss)


def pooled_graphs(batch: int = 4, device: str = "cpu") -> Step:
    """Nodes are summed by graph, as PyTorch Geometric does: how many graphs, the last index says."""
    net = nn.Linear(8, 4).to(device)

    def loss() -> torch.Tensor:
        graph = torch.arange(batch, device=device).repeat_interleave(3)
        x = net(torch.randn(3 * batch, 8, device=device))
        total = x.new_zeros(int(graph.max()) + 1, 4).index_add_(0, graph, x)
        return (total / torch.bincount(graph)[:, None]).square().mean()

    return trained(net.parameters(), loss)


def matched_boxes(batch: int = 4, device: str = "cpu") -> Step:
    """A detector's loss on a fixed count of proposals: those that overlap a box enough are counted."""
    net = nn.Linear(8, 4).to(device)

    def loss() -> torch.Tensor:
        anchors = torch.arange(16, device=device).float()[:, None] * torch.tensor([1, 1, 1, 1], device=device)
        near = (anchors - torch.tensor([4.0, 4, 4, 4], device=device)).abs().sum(1) < 10
        at = near.nonzero().squeeze(1)
        found = net(torch.randn(16, 8, device=device))[at]
        return F.smooth_l1_loss(found, anchors[at]) / max(int(near.sum()), 1)

    return trained(net.parameters(), loss)


def routed_by_token(batch: int = 4, device: str = "cpu") -> Step:
    """Experts by a hash of the token: which tokens an expert gets is known of the batch."""
    net = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)

    def loss() -> torch.Tensor:
        x, to = torch.randn(4 * batch, 8, device=device), (torch.arange(4 * batch) % 3).to(device)
        out = torch.zeros_like(x)
        for k, expert in enumerate(net):
            rows = torch.where(to == k)[0]
            if rows.numel():
                out = out.index_add(0, rows, expert(x[rows]))
        return out.square().mean()

    return trained(net.parameters(), loss)


# numbers that make a net or a schedule


def dice(batch: int = 4, device: str = "cpu") -> Step:
    """MONAI's loss: over which dimensions, a tensor says."""
    net = nn.Conv3d(1, 2, 3, padding=1).to(device)

    def loss() -> torch.Tensor:
        x = net(torch.randn(batch, 1, 4, 4, 4, device=device)).softmax(1)
        y = torch.randint(0, 2, x.shape, device=device).float()
        axes = torch.arange(2, x.dim()).tolist()
        return (1 - 2 * (x * y).sum(axes) / (x.sum(axes) + y.sum(axes) + 1e-5)).mean()

    return trained(net.parameters(), loss)


class Dropped(nn.Module):
    """A residual block that some rows do without; at a rate of 0 it always runs, without a mask."""

    def __init__(self, size: int, rate: float) -> None:
        super().__init__()
        self.linear, self.rate = nn.Linear(size, size), rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.rate > 0.0:
            y = y * y.new_empty(y.shape[0], 1).bernoulli_(1 - self.rate) / (1 - self.rate)
        return x + y


def rates_as_items(batch: int = 4, device: str = "cpu") -> Step:
    """Swin's drop rates."""
    net = nn.Sequential(*(Dropped(8, p.item()) for p in torch.linspace(0, 0.1, 4))).to(device)
    return trained(net.parameters(), lambda: net(torch.randn(batch, 8, device=device)).square().mean())


def rates_as_a_list(batch: int = 4, device: str = "cpu") -> Step:
    """timm's drop rates."""
    net = nn.Sequential(*(Dropped(8, p) for p in torch.linspace(0, 0.1, 4).tolist())).to(device)
    return trained(net.parameters(), lambda: net(torch.randn(batch, 8, device=device)).square().mean())


def widths_by_formula(batch: int = 4, device: str = "cpu") -> Step:
    """RegNet's widths and depths."""
    widths = torch.arange(6) * 3.0 + 8
    blocks = torch.round(torch.log(widths / 8) / torch.log(torch.tensor(1.5)))
    quantised = (torch.round(8 * torch.pow(torch.tensor(1.5), blocks) / 8) * 8).int()
    sizes = [8, *quantised.tolist()]
    net = mlp(*sizes).to(device)
    return trained(net.parameters(), lambda: net(torch.randn(batch, 8, device=device)).square().mean())


def pruned(batch: int = 4, device: str = "cpu") -> Step:
    """As many channels as weights are above a threshold."""
    scale = torch.linspace(0, 1, 10)
    net = mlp(8, int((scale > 0.25).sum()), 4).to(device)
    return trained(net.parameters(), lambda: net(torch.randn(batch, 8, device=device)).square().mean())


def averaged(batch: int = 4, device: str = "cpu") -> Step:
    """Stochastic weight averaging."""
    return _averaged(batch, device)


def averaged_exponentially(batch: int = 4, device: str = "cpu") -> Step:
    """An exponential moving average of weights."""
    return _averaged(batch, device, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def _averaged(batch: int, device: str, **how: Any) -> Step:
    net = mlp(8, 16, 4).to(device)
    mean = AveragedModel(net, **how)
    run = trained(net.parameters(), lambda: net(torch.randn(batch, 8, device=device)).square().mean())

    def step() -> None:
        run()
        mean.update_parameters(net)

    return step


def scheduled(batch: int = 4, device: str = "cpu") -> Step:
    """Warm-up and cosine, with clipped gradients."""
    net = mlp(8, 16, 4).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(batch, 8, device=device)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    return step


def on_a_plateau(batch: int = 4, device: str = "cpu") -> Step:
    """A schedule that looks at the loss."""
    net = mlp(8, 16, 4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(batch, 8, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())

    return step


def diffusion(batch: int = 4, device: str = "cpu") -> Step:
    """Noise by a schedule from NumPy, at random times."""
    net = nn.Conv2d(3, 3, 3, padding=1).to(device)
    kept = torch.from_numpy(np.cumprod(1 - np.linspace(1e-4, 0.02, 50))).float().to(device)

    def loss() -> torch.Tensor:
        x, noise = torch.randn(2, batch, 3, 8, 8, device=device)
        part = kept[torch.randint(50, (batch,), device=device)][:, None, None, None]
        return F.mse_loss(net(part.sqrt() * x + (1 - part).sqrt() * noise), noise)

    return trained(net.parameters(), loss)


def quantised(batch: int = 4, device: str = "cpu") -> Step:
    """VQ-VAE: the nearest code, straight through, codes by moving averages; unused ones are counted."""
    net = nn.Linear(8, 4).to(device)
    codes, sizes = torch.randn(6, 4).to(device), torch.ones(6).to(device)

    def loss() -> torch.Tensor:
        x = net(torch.randn(batch, 8, device=device))
        near = torch.cdist(x, codes).argmin(1)
        with torch.no_grad():
            which = F.one_hot(near, 6).type_as(x)
            sizes.mul_(0.9).add_(which.sum(0), alpha=0.1)
            codes.lerp_((which.T @ x) / sizes[:, None], 0.1)
        y = codes[near]
        return F.mse_loss(x, y) + (x + (y - x).detach()).square().mean()

    return trained(net.parameters(), loss)


def relative_positions(batch: int = 4, device: str = "cpu") -> Step:
    """T5's buckets, and Swin's table of them."""
    table = nn.Embedding(8, 2).to(device)

    def loss() -> torch.Tensor:
        at = torch.arange(6, device=device)
        far = (at[None] - at[:, None]).abs()
        large = 4 + (torch.log(far.float() / 4 + 1e-6) / np.log(2) * 4).long()
        bucket = torch.where(far < 4, far, large.clamp(max=7))
        return table(bucket).square().mean() * batch

    return trained(table.parameters(), loss)


class LowRank(nn.Module):
    """LoRA: a frozen layer and a small one beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, False), nn.Linear(rank, base.out_features, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.up(self.down(x))
        return y


def low_rank(batch: int = 4, device: str = "cpu") -> Step:
    """LoRA by hand."""
    net = nn.Sequential(LowRank(nn.Linear(8, 16)), nn.ReLU(), LowRank(nn.Linear(16, 4))).to(device)
    mine = [p for p in net.parameters() if p.requires_grad]
    return trained(mine, lambda: net(torch.randn(batch, 8, device=device)).square().mean())


def unet_3d(batch: int = 1, device: str = "cpu") -> Step:
    """Down, up, a skip; rows of the batch are cropped alike."""
    down, up, out = nn.Conv3d(1, 4, 2, 2), nn.ConvTranspose3d(4, 4, 2, 2), nn.Conv3d(5, 2, 1)
    net = nn.ModuleList([down, up, out]).to(device)

    def loss() -> torch.Tensor:
        x = torch.randn(batch, 1, 8, 8, 8, device=device)
        return F.cross_entropy(
            out(torch.cat([x, up(down(x).relu())], 1)), torch.randint(2, (batch, 8, 8, 8), device=device)
        )

    return trained(net.parameters(), loss)


def variational(batch: int = 4, device: str = "cpu") -> Step:
    """A VAE, by distributions that check their arguments."""
    net = nn.ModuleList([nn.Linear(8, 6), nn.Linear(3, 8)]).to(device)

    def loss() -> torch.Tensor:
        x = torch.randn(batch, 8, device=device)
        mean, spread = net[0](x).chunk(2, -1)
        found = torch.distributions.Normal(mean, spread.exp())
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return F.mse_loss(net[1](found.rsample()), x) + torch.distributions.kl_divergence(found, prior).mean()

    return trained(net.parameters(), loss)


def loaded(batch: int = 4, device: str = "cpu") -> Step:
    """A shuffled data set, epoch after epoch; the loss is kept as a number."""
    net = nn.Linear(8, 3).to(device)
    data = TensorDataset(torch.randn(8 * batch, 8), torch.arange(8 * batch) % 3)
    batches = iter([])  # type: ignore[var-annotated]
    losses: list[float] = []

    def loss() -> torch.Tensor:
        nonlocal batches
        batches = iter(DataLoader(data, batch, shuffle=True))
        x, y = next(batches)
        found = F.cross_entropy(net(x.to(device)), y.to(device))
        losses.append(found.item())
        return found

    return trained(net.parameters(), loss)


def accuracy_kept(batch: int = 4, device: str = "cpu") -> Step:
    """What right answers were counted decides nothing, and is asked for."""
    net = nn.Linear(8, 3).to(device)
    right = torch.zeros((), dtype=torch.long, device=device)

    def loss() -> torch.Tensor:
        y = torch.randint(3, (batch,), device=device)
        found = net(torch.randn(batch, 8, device=device))
        right.add_((found.argmax(1) == y).sum())
        return F.cross_entropy(found, y) + 0 * right.item()

    return trained(net.parameters(), loss)


PROGRAMS: Sequence[Callable[..., Step]] = (
    *(finite_loss, not_a_number, clipped_with_error, scaled_gradients, two_backwards, gradient_penalty, two_players),
    *(by_closure, packed, padded, cut_to_the_longest, split_by_lengths, repeated_by_counts, ctc, labelled_tokens),
    *(selected, other_pairs, pairs_of_features, prototypes, pooled_graphs, matched_boxes, routed_by_token, dice),
    *(rates_as_items, rates_as_a_list, widths_by_formula, pruned, averaged, averaged_exponentially, scheduled),
    *(on_a_plateau, diffusion, quantised, relative_positions, low_rank, unet_3d, variational, loaded, accuracy_kept),
)
ODD = {program.__name__: program for program in PROGRAMS}
CI = (
    *("finite_loss", "clipped_with_error", "packed", "padded", "ctc", "labelled_tokens", "dice", "averaged"),
    *("rates_as_items", "gradient_penalty", "quantised", "widths_by_formula"),
)
