"""Nets to learn from: those that make, restore or watch pictures, and odd classifiers of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import F, Residual, image

Layers = nn.Sequential


class GAN(nn.Module):
    """A generator of transposed convolutions, and who judges it."""

    def __init__(self) -> None:
        super().__init__()
        widths = (192, 96, 48)
        up = [
            m
            for a, b in pairwise(widths)
            for m in (nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True))
        ]
        self.generator = Layers(
            nn.ConvTranspose2d(64, 192, 4, bias=False),
            nn.BatchNorm2d(192),
            nn.ReLU(True),
            *up,
            nn.ConvTranspose2d(48, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.judge = Layers(
            nn.Conv2d(3, 48, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(48, 96, 4, 2, 1),
            nn.BatchNorm2d(96),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(96, 1, 8),
            nn.Flatten(),
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
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.ELU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ELU(),
        nn.Conv2d(64, 64, 3, 1, 1),
        nn.ELU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 32, 3, 1, 1),
        nn.ELU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(32, 3, 3, 1, 1),
    )


def super_resolution() -> nn.Module:
    """Twice as many pixels, from channels."""
    return Layers(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.PReLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.PReLU(),
        nn.Conv2d(32, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )


def style() -> nn.Module:
    """Instance norms and reflected borders."""

    def block(w: int) -> nn.Module:
        return Layers(nn.ReflectionPad2d(1), nn.Conv2d(w, w, 3), nn.InstanceNorm2d(w, affine=True), nn.ReLU())

    return Layers(
        nn.Conv2d(3, 32, 5, 1, 2),
        nn.GroupNorm(8, 32),
        nn.SiLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        Residual(block(64)),
        Residual(block(64)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 3, 3, 1, 1),
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


def video() -> nn.Module:
    """Convolutions over space and time."""
    return Layers(
        nn.Conv3d(3, 16, 3, padding=1),
        nn.BatchNorm3d(16),
        nn.ReLU(),
        nn.MaxPool3d((1, 2, 2)),
        nn.Conv3d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool3d(2),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


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


def q_values(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The loss of Q learning, with what was chosen."""
    return F.smooth_l1_loss(values.gather(1, chosen), torch.zeros(len(values), 1))


def dqn() -> nn.Module:
    """Frames to the value of each action."""
    return Layers(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 256),
        nn.ReLU(),
        nn.Linear(256, 6),
    )


def pictures(size: int, out: int) -> Any:
    """Batches of pictures, and of pictures to make of them."""
    return lambda n: (torch.randn(n, 3, size, size), torch.randn(n, 3, out, out))


ce, mse = F.cross_entropy, F.mse_loss

ce, mse = F.cross_entropy, F.mse_loss
IMAGES: dict[str, tuple[Any, Any, Any, str, int]] = {
    "gan": (
        GAN,
        lambda n: (torch.randn(n, 64, 1, 1), torch.ones(n, 1)),
        F.binary_cross_entropy_with_logits,
        "adam",
        16,
    ),
    "vae": (
        VAE,
        lambda n: (torch.rand(n, 784), torch.rand(n, 784)),
        lambda out, x: F.binary_cross_entropy(out[0], x) + out[1],
        "adam",
        128,
    ),
    "autoencoder": (autoencoder, pictures(48, 48), mse, "sgd", 12),
    "super_resolution": (super_resolution, pictures(40, 80), F.l1_loss, "adam", 8),
    "style": (style, pictures(48, 48), mse, "rmsprop", 6),
    "denoiser": (
        Denoiser,
        lambda n: (torch.randn(n, 3, 24, 24), torch.rand(n, 1), torch.randn(n, 3, 24, 24)),
        mse,
        "adamw",
        8,
    ),
    "video": (video, lambda n: (torch.randn(n, 3, 8, 24, 24), torch.randint(10, (n,))), ce, "momentum", 6),
    "routing": (Routing, lambda n: (torch.randn(n, 1, 28, 28), torch.rand(n, 10)), mse, "adam", 16),
    "windows": (Windows, image(48), ce, "adamw", 16),
    "dqn": (dqn, lambda n: (torch.randn(n, 4, 84, 84), torch.randint(6, (n, 1))), q_values, "rmsprop", 16),
}
