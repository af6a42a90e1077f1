"""What the paper says: Tables 1 and 2, and of its figures what the text names."""

from __future__ import annotations

from typing import NamedTuple


class Batches(NamedTuple):
    """A row of Table 1: the largest batch of a model, and of each of two that share the GPU."""

    solo: int
    mps: int
    coarse: int  # Waterwave-s
    waterwave: int


TABLE1 = {  # (machine, model)
    ("v100", "resnet50"): Batches(406, 384, 266, 370),
    ("v100", "resnet152"): Batches(186, 176, 118, 160),
    ("v100", "nasnet"): Batches(560, 556, 316, 544),
    ("v100", "inceptionv3"): Batches(332, 328, 204, 310),
    ("v100", "bert_base"): Batches(138, 136, 88, 124),
    ("v100", "tacotron2"): Batches(198, 198, 96, 152),
    ("p100", "resnet50"): Batches(190, 190, 120, 176),
    ("p100", "resnet152"): Batches(86, 86, 62, 78),
    ("p100", "nasnet"): Batches(280, 265, 192, 260),
    ("p100", "inceptionv3"): Batches(160, 160, 106, 150),
    ("p100", "bert_base"): Batches(60, 56, 38, 48),
    ("p100", "tacotron2"): Batches(98, 94, 48, 72),
}
MIXED = {  # Table 2, v100: the largest batches of two models
    ("resnet50", "bert_base"): (358, 116),
    ("resnet50", "tacotron2"): (370, 150),
    ("bert_base", "tacotron2"): (120, 150),
}
SEVERAL = {2: 370, 3: 336, 4: 310}  # ResNet50 on v100, section 5.5: jobs -> largest batch
SEVERAL_RATE = {3: 402.76, 4: 401.58}  # samples a second
SPLITS = (1, 2, 4, 6, 8, 12)  # GB: figure 8
GROUPS = 8  # Tacotron2's, at its largest batch
FREED = (5.4, 13.0)  # GB at the peak: figure 2, ResNet50 on p100, freed when scheduled, and "over" when completed
BAND = (2.2, 2.7)  # around the one over the other
SEQUENTIAL = {"resnet50": 0.246, "bert_base": 0.346, "tacotron2": 0.707}  # figure 3; the first is named by no text
GAINS = {"resnet152": 1.1427, "tacotron2": 1.49}  # figure 7: at most over temporal sharing, of all CNNs and of all
OVER_MPS = {"resnet50": 12.0, "bert_base": 6.8, "tacotron2": 3.1}  # figure 7: at most


def model_of(name: str) -> str:
    """Return the paper's model that a recorded trace is of, or its name.

    >>> model_of("bert_base_s128_b32"), model_of("vgg16_cifar_b100")
    ('bert_base', 'vgg16_cifar_b100')
    """
    models = {model for _, model in TABLE1}
    return next((model for model in models if name.startswith(f"{model}_")), name)
