"""A diffusion model's U-Net (diffusers) and speech out of text (torchaudio)."""

from __future__ import annotations

from typing import Any

from gpumem.torch.internals import torch
from gpumem.torch.zoo.libraries import library, module_of
from gpumem.torch.zoo.recipe import Input, Net

F = torch.nn.functional
CHANNELS = (128, 256, 256, 256)  # of the U-Net, by level: as DDPM has for CIFAR-10
CHARACTERS, SYMBOLS, MELS = 50, 148, 80


def ddpm_unet(*, size: int = 32) -> Net:
    """UNet2DModel with attention in its second level; it learns the noise."""

    def build() -> Any:
        return library("diffusers").UNet2DModel(
            sample_size=size,
            block_out_channels=CHANNELS,
            layers_per_block=2,
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        )

    images = Input((3, size, size))
    return Net(build, (images, images, Input((), 1000)), _denoise, 64, "adam", ("diffusers",))


def _denoise(net: Any, x: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(net(x, time).sample, noise)


def tacotron2(*, frames: int = 40) -> Net:
    """Tacotron 2: 50 characters in, frames of a spectrogram out."""

    def build() -> Any:
        module = module_of("torchaudio.models.tacotron2")
        net, mask_of = module.Tacotron2(), module._get_mask_from_lengths
        module._get_mask_from_lengths = lambda lengths: mask_of(lengths).to(net.embedding.weight.device)
        return net

    inputs = (Input((CHARACTERS,), SYMBOLS), Input((MELS, frames)), Input((frames,)))
    return Net(build, inputs, _speak, 32, "adam", ("torchaudio",))


def _speak(net: Any, text: torch.Tensor, mel: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    lengths = [torch.full((len(text),), x.size(-1), device="cpu") for x in (text, mel)]  # the host asks for them
    before, after, gates, _ = net(text, lengths[0], mel, lengths[1])
    return F.mse_loss(before, mel) + F.mse_loss(after, mel) + F.binary_cross_entropy_with_logits(gates, gate)
