"""Programs that ask for values: those of the tests, which need PyTorch only, and others people's, from libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from tests.pytorch.odd_programs import ODD, Step, trained


def monai_dice(batch: int = 1, device: str = "cpu") -> Step:
    """MONAI's U-Net and DiceLoss."""
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet

    net = UNet(3, 1, 2, (4, 8, 16), (2, 2)).to(device)
    return _segmenting(net, DiceLoss(softmax=True, to_onehot_y=True), batch, device)


def monai_dice_ce(batch: int = 1, device: str = "cpu") -> Step:
    """MONAI's SegResNet, DiceCELoss."""
    from monai.losses import DiceCELoss
    from monai.networks.nets import SegResNet

    net = SegResNet(3, 8, 1, 2, blocks_down=(1, 1), blocks_up=(1,)).to(device)
    return _segmenting(net, DiceCELoss(softmax=True, to_onehot_y=True), batch, device)


def monai_attention(batch: int = 1, device: str = "cpu") -> Step:
    """MONAI's attention U-Net, with the generalised loss."""
    from monai.losses import GeneralizedDiceLoss
    from monai.networks.nets import AttentionUnet

    net = AttentionUnet(3, 1, 2, (4, 8, 16), (2, 2)).to(device)
    return _segmenting(net, GeneralizedDiceLoss(softmax=True, to_onehot_y=True), batch, device)


def monai_vnet(batch: int = 1, device: str = "cpu") -> Step:
    """MONAI's V-Net, Tversky's loss."""
    from monai.losses import TverskyLoss
    from monai.networks.nets import VNet

    net = VNet(3, 1, 2).to(device)
    return _segmenting(net, TverskyLoss(softmax=True, to_onehot_y=True), batch, device, size=32)


def _segmenting(net: Any, loss: Any, batch: int, device: str, size: int = 16) -> Step:
    def found() -> torch.Tensor:
        x = torch.randn(batch, 1, size, size, size, device=device)
        y = torch.randint(2, (batch, 1, size, size, size), device=device)
        lost: torch.Tensor = loss(net(x), y)
        return lost

    return trained(net.parameters(), found)


def peft_lora(batch: int = 2, device: str = "cpu") -> Step:
    """LoRA of a decoder, by peft."""
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    small = LlamaConfig(vocab_size=100, num_key_value_heads=2, use_cache=False, **sizes)
    how = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    net = peft.get_peft_model(LlamaForCausalLM(small), how).to(device).train()

    def loss() -> torch.Tensor:
        tokens = torch.randint(3, 100, (batch, 16)).to(device)
        mask = torch.ones(batch, 16, dtype=torch.long).to(device)
        lost: torch.Tensor = net(input_ids=tokens, labels=tokens, attention_mask=mask).loss
        return lost

    return trained([p for p in net.parameters() if p.requires_grad], loss)


def diffusers_unet(batch: int = 1, device: str = "cpu") -> Step:
    """Diffusers' U-Net and its schedule of noise."""
    from diffusers import DDPMScheduler, UNet2DModel

    kinds = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    net = UNet2DModel(16, 3, 3, False, block_out_channels=(32, 64), down_block_types=kinds[0], up_block_types=kinds[1])
    net, noises = net.to(device), DDPMScheduler(100)

    def loss() -> torch.Tensor:
        x, noise = torch.randn(2, batch, 3, 16, 16, device=device)
        times = torch.randint(0, 100, (batch,), device=device)
        return F.mse_loss(net(noises.add_noise(x, noise, times), times).sample, noise)

    return trained(net.parameters(), loss)


def diffusers_text_unet(batch: int = 1, device: str = "cpu") -> Step:
    """Diffusers' U-Net with cross attention, losses weighted by the signal to noise ratio."""
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from diffusers.training_utils import compute_snr

    kinds = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    net = UNet2DConditionModel(
        16, 4, 4, down_block_types=kinds[0], up_block_types=kinds[1], block_out_channels=(32, 64), layers_per_block=1,
        cross_attention_dim=16, attention_head_dim=8,
    ).to(device)  # fmt: skip
    noises = DDPMScheduler(100)

    def loss() -> torch.Tensor:
        x, noise = torch.randn(2, batch, 4, 16, 16, device=device)
        times = torch.randint(0, 100, (batch,), device=device)
        text = torch.randn(batch, 5, 16, device=device)
        found = net(noises.add_noise(x, noise, times), times, text).sample
        weights = compute_snr(noises, times).clamp(max=5) / compute_snr(noises, times)
        return (F.mse_loss(found, noise, reduction="none").mean((1, 2, 3)) * weights).mean()

    return trained(net.parameters(), loss)


def diffusers_vae(batch: int = 1, device: str = "cpu") -> Step:
    """Diffusers' autoencoder."""
    from diffusers import AutoencoderKL

    net = AutoencoderKL(
        3, 3, ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2, (32, 64), latent_channels=4, sample_size=32
    ).to(device)

    def loss() -> torch.Tensor:
        x = torch.randn(batch, 3, 32, 32, device=device)
        found = net.encode(x).latent_dist
        return F.mse_loss(net.decode(found.sample()).sample, x) + 1e-4 * found.kl().mean()

    return trained(net.parameters(), loss)


def detector(batch: int = 1, device: str = "cpu") -> Step:
    """Torchvision's Faster R-CNN: proposals, matches to boxes, samples of them."""
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build

    net = build(weights=None, weights_backbone=None, num_classes=3, rpn_post_nms_top_n_train=20).to(device).train()
    return _detecting(net, batch, device)


def retina(batch: int = 2, device: str = "cpu") -> Step:
    """Torchvision's SSDlite: anchors matched to boxes, hard negatives."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build

    net = build(weights=None, weights_backbone=None, num_classes=3).to(device).train()
    return _detecting(net, batch, device)


def _detecting(net: Any, batch: int, device: str) -> Step:
    boxes = torch.tensor([[10.0, 10, 100, 120], [60, 50, 200, 220]], device=device)
    truth = [{"boxes": boxes, "labels": torch.tensor([1, 2], device=device)} for _ in range(batch)]

    def loss() -> torch.Tensor:
        images = [torch.rand(3, 240, 240, device=device) for _ in range(batch)]
        return torch.stack([*net(images, truth).values()]).sum()

    return trained([p for p in net.parameters() if p.requires_grad], loss)


def speech(batch: int = 2, device: str = "cpu") -> Step:
    """wav2vec 2 with CTC: lengths, masked time steps."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    waves = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 4}
    still = {"num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0}
    small = Wav2Vec2Config(vocab_size=12, **sizes, **waves, **still)
    net = Wav2Vec2ForCTC(small).to(device).train()

    def loss() -> torch.Tensor:
        x, y = torch.randn(batch, 800, device=device), torch.randint(1, 12, (batch, 6), device=device)
        lost: torch.Tensor = net(x, labels=y).loss
        return lost

    return trained(net.parameters(), loss)


def masked_images(batch: int = 2, device: str = "cpu") -> Step:
    """ViT-MAE: a random part of the patches."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    net = ViTMAEForPreTraining(ViTMAEConfig(image_size=32, patch_size=8, **sizes)).to(device).train()
    return trained(net.parameters(), lambda: net(torch.randn(batch, 3, 32, 32, device=device)).loss)


def pictures_and_words(batch: int = 2, device: str = "cpu") -> Step:
    """CLIP: the end of each text is looked for."""
    from transformers import CLIPConfig, CLIPModel

    words = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    views = words | {"image_size": 32, "patch_size": 8}
    net = CLIPModel(
        CLIPConfig(text_config=words | {"vocab_size": 100, "eos_token_id": 2, "bos_token_id": 1}, vision_config=views)
    )
    net = net.to(device).train()

    def loss() -> torch.Tensor:
        tokens = torch.randint(3, 100, (batch, 8)).to(device)
        tokens[:, -1] = 2
        seen = torch.randn(batch, 3, 32, 32, device=device)
        lost: torch.Tensor = net(input_ids=tokens, pixel_values=seen, return_loss=True).loss
        return lost

    return trained(net.parameters(), loss)


OTHERS: tuple[Callable[..., Step], ...] = (
    *(monai_dice, monai_dice_ce, monai_attention, monai_vnet, peft_lora, diffusers_unet, diffusers_text_unet),
    *(diffusers_vae, detector, retina, speech, masked_images, pictures_and_words),
)


def cases() -> Iterator[tuple[str, Callable[..., Step]]]:
    """All of them."""
    yield from ODD.items()
    for program in OTHERS:
        yield program.__name__, program
