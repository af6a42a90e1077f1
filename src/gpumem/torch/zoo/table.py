"""The zoo: nets by name, and the traces that the benchmarks use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpumem.torch.zoo import language as of, plain, vision
from gpumem.torch.zoo.generative import ddpm_unet, tacotron2
from gpumem.torch.zoo.recipe import Net

Family = Callable[..., Net]

_DEPTHS = (18, 34, 50, 101, 152)  # of ResNet: He et al. 2016, table 1
ZOO: dict[str, Family] = {
    "mlp3": partial(plain.mlp, 3),
    **{f"vgg{depth}_cifar": partial(plain.cifar_vgg, depth) for depth in plain.STAGES},
    "unet": plain.unet,
    **{f"resnet{depth}_cifar": partial(vision.cifar_resnet, f"resnet{depth}") for depth in _DEPTHS},
    **{f"resnet{depth}": partial(vision.classifier, "torchvision", f"resnet{depth}") for depth in _DEPTHS},
    **{f"vgg{depth}": partial(vision.classifier, "torchvision", f"vgg{depth}") for depth in plain.STAGES},
    "densenet121": partial(vision.classifier, "torchvision", "densenet121"),
    "inceptionv3": partial(vision.classifier, "torchvision", "inception_v3"),
    "inceptionv4": partial(vision.classifier, "timm", "inception_v4"),
    "nasnet": partial(vision.classifier, "timm", "nasnetalarge"),
    "bert_base": partial(of.language, of.BERT),
    "bert_large": partial(of.language, of.BERT, layers=24, hidden=1024),
    "gpt2": partial(of.language, of.GPT2),
    "gpt2_medium": partial(of.language, of.GPT2, layers=24, hidden=1024),
    "gpt2_large": partial(of.language, of.GPT2, layers=36, hidden=1280),
    "gpt2_xl": partial(of.language, of.GPT2, layers=48, hidden=1600),
    "llama": partial(of.language, of.LLAMA),
    "opt": partial(of.language, of.OPT),
    "t5": partial(of.language, of.T5),
    "ddpm_unet": ddpm_unet,
    "tacotron2": tacotron2,
}

# The traces that the benchmarks use.
TRACES = (
    *("mlp3_b128_sgd", "vgg11_cifar_b100", "vgg16_cifar_b100", "vgg16_cifar_b100_noinplace", "unet_256_b16"),
    *("unet_256_b120", "resnet18_cifar_b100", "resnet50_cifar_b100", "resnet152_cifar_b100", "resnet18_224_b32_cold3"),
    *("resnet34_224_b128", "resnet34_224_b256", "resnet34_224_b512", "resnet50_224_b2", "resnet50_224_b2_adam"),
    *("resnet50_224_b64", "resnet50_224_b64_foreach", "resnet152_224_b64", "vgg16_224_b2", "vgg16_224_b2_adam"),
    *("vgg19_227_b144", "densenet121_224_b2", "densenet121_224_b2_adam", "inceptionv3_299_b2"),
    *("inceptionv3_299_b2_adam", "inceptionv4_299_b2_adam", "inceptionv4_299_b64", "nasnet_331_b32"),
    *("bert_base_s128_b32", "gpt2_s512_b8", "gpt2_s512_b8_checkpoint", "llama_8l1024_s1024_b4_bf16"),
    *("ddpm_unet_32_b64", "tacotron2_t40_b32"),
)
