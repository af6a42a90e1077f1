"""Four nets to train, and their training in the ways of `_peers.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.speed._peers import COPIES, Peer
from gpumem.torch.zoo.libraries import library

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Net:
    """A net to train: how to build it, which of its modules are blocks, its batch, its loss."""

    name: str
    build: Callable[[], nn.Module]
    blocks: Callable[[Any], Sequence[nn.Module]]
    batch: Callable[[], Batch]
    loss: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def classified(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a classifier of images."""
    return F.cross_entropy(model(x), y)


def spoken(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a language model, at each word."""
    return F.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())


def denoised(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a diffusion model at one time step."""
    return F.mse_loss(model(x, 10).sample, y)


def words(count: int, batch: int, length: int) -> Callable[[], Batch]:
    """Random words, and others to say."""
    return lambda: (torch.randint(count, (batch, length)), torch.randint(count, (batch, length)))


def resnet18() -> nn.Module:
    """A ResNet of torchvision, for small images."""
    return library("torchvision").models.resnet18(num_classes=10)


def gpt2() -> nn.Module:
    """GPT-2 of transformers, small."""
    lib = library("transformers")
    sizes: dict[str, Any] = {
        "n_layer": 4,
        "n_embd": 256,
        "n_head": 4,
        "vocab_size": 2048,
        "n_positions": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return lib.GPT2LMHeadModel(lib.GPT2Config(**sizes, use_cache=False, attn_implementation="eager"))


def bert() -> nn.Module:
    """BERT of transformers, small."""
    lib = library("transformers")
    sizes: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 2048}
    sizes |= {"intermediate_size": 1024, "max_position_embeddings": 128}
    return lib.BertForMaskedLM(lib.BertConfig(**sizes, attn_implementation="eager"))


def unet() -> nn.Module:
    """A U-Net of diffusers, small."""
    kinds = {"down_block_types": ("DownBlock2D",) * 3, "up_block_types": ("UpBlock2D",) * 3}
    return library("diffusers").UNet2DModel(
        sample_size=32, layers_per_block=2, block_out_channels=(32, 64, 64), norm_num_groups=8, **kinds
    )


def images(batch: int, size: int, classes: int = 0) -> Callable[[], Batch]:
    """Random images, with classes or with other images."""
    shape = (batch, 3, size, size)
    return lambda: (torch.randn(shape), torch.randint(classes, (batch,)) if classes else torch.randn(shape))


NETS = (
    Net("resnet18", resnet18, lambda m: [b for k in range(1, 5) for b in getattr(m, f"layer{k}")],
        images(64, 48, 10), classified),
    Net("gpt2", gpt2, lambda m: m.transformer.h, words(2048, 4, 128), spoken),
    Net("bert", bert, lambda m: m.bert.encoder.layer, words(2048, 4, 128), spoken),
    Net("unet", unet, lambda m: [b for s in (*m.down_blocks, m.mid_block, *m.up_blocks) for b in s.resnets],
        images(8, 32), denoised),
)  # fmt: skip


class Training:
    """A net trained in some way; `step` runs one iteration and returns the loss."""

    def __init__(self, net: Net, peer: Peer) -> None:
        self.net, self.peer = net, peer

    def __call__(self) -> Callable[[], torch.Tensor]:
        """Build everything anew."""
        torch.manual_seed(0)
        model = self.net.build().train()
        self.peer.prepare(model, [*self.net.blocks(model)])
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        net = self.net

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return net.loss(model, x, y)

        self.loss = loss
        self.watching: list[AbstractContextManager[Any]] = [nullcontext()]
        if self.peer.options is None:
            return self.step
        from benchmarks.speed._compiled import WATCHING, compiled  # here, as it takes seconds

        self.watching = WATCHING
        self.loss, configured = compiled(loss, self.peer.options)

        def step() -> torch.Tensor:
            with configured():
                return self.step()

        return step

    def step(self) -> torch.Tensor:
        """The batch comes, forward, backward, update."""
        COPIES.log.clear()
        with self.watching[-1]:
            batch = self.net.batch()
        with self.peer.around():
            loss = self.loss(*batch)
        loss.backward()
        with self.watching[-1]:
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()
