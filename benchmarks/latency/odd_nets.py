"""More nets to learn from: generators, signals, graphs, recommenders, video, and other losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import Each, F, Residual, conv, image

Layers = nn.Sequential


class GAN(nn.Module):
    """A generator of transposed convolutions, and who judges it."""

    def __init__(self) -> None:
        super().__init__()
        widths = (192, 96, 48)
        up = [m for a, b in zip(widths, widths[1:])
              for m in (nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True))]
        self.generator = Layers(
            nn.ConvTranspose2d(64, 192, 4, bias=False), nn.BatchNorm2d(192), nn.ReLU(True), *up,
            nn.ConvTranspose2d(48, 3, 4, 2, 1), nn.Tanh(),
        )
        self.judge = Layers(
            nn.Conv2d(3, 48, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(48, 96, 4, 2, 1), nn.BatchNorm2d(96),
            nn.LeakyReLU(0.2, True), nn.Conv2d(96, 1, 8), nn.Flatten(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Judge what is generated."""
        return self.judge(self.generator(noise))


class VAE(nn.Module):
    """An autoencoder that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.log = nn.Linear(784, 512), nn.Linear(512, 32), nn.Linear(512, 32)
        self.decode = Layers(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is decoded, and how far the code is from a normal one."""
        h = F.relu(self.encode(x))
        mean, log = self.mean(h), self.log(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log)
        return self.decode(z), -0.5 * torch.mean(1 + log - mean.pow(2) - log.exp())


def autoencoder() -> nn.Module:
    """Down by convolutions with strides, up by interpolation."""
    return Layers(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ELU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ELU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ELU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, 1, 1), nn.ELU(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(32, 3, 3, 1, 1),
    )


def super_resolution() -> nn.Module:
    """Twice as many pixels, from channels."""
    return Layers(
        nn.Conv2d(3, 64, 5, padding=2), nn.PReLU(), nn.Conv2d(64, 32, 3, padding=1), nn.PReLU(),
        nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2),
    )


def style() -> nn.Module:
    """Instance norms and reflected borders."""

    def block(w: int) -> nn.Module:
        return Layers(nn.ReflectionPad2d(1), nn.Conv2d(w, w, 3), nn.InstanceNorm2d(w, affine=True), nn.ReLU())

    return Layers(
        nn.Conv2d(3, 32, 5, 1, 2), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, 1), Residual(block(64)),
        Residual(block(64)), nn.Upsample(scale_factor=2), nn.Conv2d(64, 3, 3, 1, 1),
    )


class Denoiser(nn.Module):
    """Group norms, a time that is added, attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.first = Layers(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64)), nn.Conv2d(3, 64, 3, 1, 1)
        self.blocks = nn.ModuleList(
            Layers(nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, 1, 1)) for _ in range(3)
        )
        self.norm, self.attend = nn.GroupNorm(8, 64), nn.MultiheadAttention(64, 4, batch_first=True)
        self.last = nn.Conv2d(64, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the noise."""
        y = self.first(x) + self.time(t)[:, :, None, None]
        for block in self.blocks:
            y = y + block(y)
        flat = self.norm(F.avg_pool2d(y, 2)).flatten(2).transpose(1, 2)
        told, _ = self.attend(flat, flat, flat, need_weights=False)
        y = y + F.interpolate(told.transpose(1, 2).reshape(len(y), 64, 12, 12), scale_factor=2.0)
        return self.last(y)


def tcn() -> nn.Module:
    """Dilated convolutions over time."""

    def block(a: int, b: int, d: int) -> nn.Module:
        branch = Layers(nn.Conv1d(a, b, 3, padding=d, dilation=d), nn.ReLU(), nn.Dropout(0.1), nn.Conv1d(b, b, 1))
        return Residual(branch, nn.Conv1d(a, b, 1) if a != b else None)

    blocks = [block(a, b, d) for a, b, d in ((8, 64, 1), (64, 64, 2), (64, 128, 4), (128, 128, 8))]
    return Layers(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 6))


class WaveNet(nn.Module):
    """Gated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 48, 1)
        self.gates = nn.ModuleList(nn.Conv1d(48, 96, 2, padding=2**k, dilation=2**k) for k in range(5))
        self.out = nn.Conv1d(48, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each moment."""
        y = self.first(x)
        for gate in self.gates:
            a, b = gate(y)[..., : y.shape[-1]].chunk(2, 1)
            y = y + torch.tanh(a) * torch.sigmoid(b)
        return self.out(F.relu(y))


def pointnet() -> nn.Module:
    """Points one by one, then their maximum."""
    layers = [m for a, b in ((3, 64), (64, 128), (128, 512)) for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())]
    return Layers(*layers, Each(lambda x: x.max(-1)[0]), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


class GCN(nn.Module):
    """Messages along edges, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 7)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return logits of each node."""
        for k, layer in enumerate(self.layers):
            h = layer(x)
            x = torch.zeros_like(h).index_add(0, edges[1], h.index_select(0, edges[0]))
            x = F.relu(x) if k < 2 else F.log_softmax(x, -1)
        return x


class NCF(nn.Module):
    """Users and items: a product of embeddings beside linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(6000, 64), nn.Embedding(4000, 64)
        self.layers, self.out = Layers(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), nn.Linear(128, 1)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return a logit."""
        u, i = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.out(torch.cat([u * i, self.layers(torch.cat([u, i], 1))], 1)).squeeze(1)


class WideDeep(nn.Module):
    """Bags of words beside dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.wide = nn.EmbeddingBag(8000, 64, mode="mean"), nn.EmbeddingBag(8000, 16, mode="sum")
        self.deep = Layers(nn.Linear(64 + 20, 256), nn.ReLU(), nn.BatchNorm1d(256), nn.Linear(256, 64), nn.ReLU())
        self.out = nn.Linear(80, 5)

    def forward(self, words: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        deep = self.deep(torch.cat([self.bag(words), dense], 1))
        return self.out(torch.cat([deep, self.wide(words)], 1))


class Machines(nn.Module):
    """Factorisation machine: all pairs of fields interact."""

    def __init__(self) -> None:
        super().__init__()
        self.fields, self.out = nn.Embedding(10_000, 24), nn.Linear(66, 1)
        self.register_buffer("pairs", torch.triu_indices(12, 12, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a logit."""
        e = self.fields(x)
        products = torch.matmul(e, e.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.out(products)[:, 0]


def video() -> nn.Module:
    """Convolutions over space and time."""
    return Layers(
        nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d((1, 2, 2)),
        nn.Conv3d(16, 32, 3, padding=1), nn.ReLU(), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10),
    )


class Reader(nn.Module):
    """Lines of text: convolutions, a recurrent layer, logits of each column."""

    def __init__(self) -> None:
        super().__init__()
        self.see = Layers(conv(1, 32), nn.MaxPool2d(2), conv(32, 64), nn.MaxPool2d((8, 1)))
        self.read, self.out = nn.GRU(128, 96, batch_first=True), nn.Linear(96, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, columns first."""
        y, _ = self.read(self.see(x).flatten(1, 2).transpose(1, 2))
        return F.log_softmax(self.out(y), -1).transpose(0, 1)


class Triplet(nn.Module):
    """Embeddings of length one, and their distances."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Layers(nn.Linear(256, 512), nn.SELU(), nn.Linear(512, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all similarities."""
        e = F.normalize(self.net(x), dim=-1)
        return (e @ e.t()) / 0.1


class Routing(nn.Module):
    """Capsules: votes, agreed upon in three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.votes = nn.Conv2d(1, 64, 9, 2), nn.Parameter(torch.randn(1, 10, 200, 16, 8) * 0.1)
        self.narrow = nn.Conv2d(64, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return lengths."""
        u = self.narrow(F.relu(self.see(x))).reshape(len(x), 1, 200, 8, 1)
        u = (self.votes @ u).squeeze(-1)
        logits = torch.zeros(*u.shape[:3], 1)
        for _ in range(3):
            s = (F.softmax(logits, 1) * u).sum(2, keepdim=True)
            norm = s.pow(2).sum(-1, keepdim=True)
            v = norm / (1 + norm) * s / torch.sqrt(norm + 1e-6)
            logits = logits + (u * v).sum(-1, keepdim=True)
        return torch.linalg.vector_norm(v.squeeze(2), dim=-1)


class Windows(nn.Module):
    """Attention within windows that are shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.qkv = nn.Conv2d(3, 96, 4, 4), nn.LayerNorm(96), nn.Linear(96, 288)
        self.mix, self.out = nn.Linear(96, 96), nn.Linear(96, 10)
        self.bias = nn.Parameter(torch.zeros(1, 3, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.patches(x).permute(0, 2, 3, 1)
        for shift in (0, 2):
            n, h, w, c = x.shape
            y = torch.roll(self.norm(x), (-shift, -shift), (1, 2))
            y = y.reshape(n, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
            q, k, v = self.qkv(y).view(-1, 16, 3, 3, c // 3).permute(2, 0, 3, 1, 4)
            y = (F.softmax(q @ k.transpose(-1, -2) * 0.18 + self.bias, -1) @ v).transpose(1, 2).reshape(-1, 16, c)
            y = self.mix(y).view(n, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(n, h, w, c)
            x = x + torch.roll(y, (shift, shift), (1, 2))
        return self.out(x.mean((1, 2)))


class Highway(nn.Module):
    """Gates between layers and what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.gates = (nn.ModuleList(nn.Linear(320, 320) for _ in range(4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's."""
        for layer, gate in zip(self.layers, self.gates):
            t = torch.sigmoid(gate(x))
            x = t * F.softplus(layer(x)) + (1 - t) * x
        return x


def q_values(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The loss of Q learning, with what was chosen."""
    return F.smooth_l1_loss(values.gather(1, chosen), torch.zeros(len(values), 1))


def dqn() -> nn.Module:
    """Frames to the value of each action."""
    return Layers(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, 6),
    )


def pictures(size: int, out: int) -> Any:
    """Batches of pictures, and of pictures to make of them."""
    return lambda n: (torch.randn(n, 3, size, size), torch.randn(n, 3, out, out))


def _graph(n: int) -> Sequence[torch.Tensor]:
    return torch.randn(n, 64), torch.randint(n, (2, 8 * n)), torch.randint(7, (n,))


def _ctc(log: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    columns = torch.full((len(words),), len(log))
    return F.ctc_loss(log, words, columns, torch.full((len(words),), words.shape[1]))


def _logits(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits, target)


ce, mse = F.cross_entropy, F.mse_loss
ODD: dict[str, tuple[Any, Any, Any, str, int]] = {
    "gan": (GAN, lambda n: (torch.randn(n, 64, 1, 1), torch.ones(n, 1)), _logits, "adam", 16),
    "vae": (
        VAE, lambda n: (torch.rand(n, 784), torch.rand(n, 784)),
        lambda out, x: F.binary_cross_entropy(out[0], x) + out[1], "adam", 128,
    ),
    "autoencoder": (autoencoder, pictures(48, 48), mse, "sgd", 12),
    "super_resolution": (super_resolution, pictures(40, 80), F.l1_loss, "adam", 8),
    "style": (style, pictures(48, 48), mse, "rmsprop", 6),
    "denoiser": (
        Denoiser, lambda n: (torch.randn(n, 3, 24, 24), torch.rand(n, 1), torch.randn(n, 3, 24, 24)), mse, "adamw", 8
    ),
    "tcn": (tcn, lambda n: (torch.randn(n, 8, 256), torch.randint(6, (n,))), ce, "adam", 24),
    "wavenet": (WaveNet, lambda n: (torch.randn(n, 1, 512), torch.randint(64, (n, 512))), ce, "sgd", 8),
    "pointnet": (pointnet, lambda n: (torch.randn(n, 3, 256), torch.randint(10, (n,))), ce, "adam", 16),
    "gcn": (GCN, _graph, F.nll_loss, "adam", 2000),
    "ncf": (
        NCF, lambda n: (torch.randint(4000, (n, 2)), torch.rand(n)), _logits, "adagrad", 512
    ),
    "wide_deep": (
        WideDeep, lambda n: (torch.randint(8000, (n, 20)), torch.randn(n, 20), torch.randint(5, (n,))), ce, "sgd", 256
    ),
    "machines": (Machines, lambda n: (torch.randint(10_000, (n, 12)), torch.rand(n)), _logits, "adam", 256),
    "video": (video, lambda n: (torch.randn(n, 3, 8, 24, 24), torch.randint(10, (n,))), ce, "momentum", 6),
    "reader": (Reader, lambda n: (torch.randn(n, 1, 32, 64), torch.randint(1, 30, (n, 10))), _ctc, "adam", 12),
    "triplet": (Triplet, lambda n: (torch.randn(n, 256), torch.arange(n)), ce, "momentum", 192),
    "routing": (Routing, lambda n: (torch.randn(n, 1, 28, 28), torch.rand(n, 10)), mse, "adam", 16),
    "windows": (Windows, image(48), ce, "adamw", 16),
    "highway": (Highway, lambda n: (torch.randn(n, 320), torch.randn(n, 320)), F.huber_loss, "rmsprop", 160),
    "dqn": (dqn, lambda n: (torch.randn(n, 4, 84, 84), torch.randint(6, (n, 1))), q_values, "rmsprop", 16),
}
