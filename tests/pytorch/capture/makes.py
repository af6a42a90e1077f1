"""The steps of the scripts in `tests/pytorch/scripts`, each by `make`."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

SCRIPTS = Path(__file__).parents[1] / "scripts"
Step = Callable[[], None]


def parts_of(script: str) -> dict[str, Any]:
    """What a script defines, unless it trains at once."""
    return runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="parts")


def plain(batch: int = 32) -> Step:
    net = parts_of("plain")["Net"]()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)

    def step() -> None:
        data, target = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        optimizer.zero_grad()
        nn.functional.nll_loss(net(data), target).backward()
        optimizer.step()

    return step


def accumulating(batch: int = 16, parts: int = 3) -> Step:
    sys.path.insert(0, str(SCRIPTS))
    net = importlib.import_module("models").TextClassifier(1000, 128)
    sys.path.remove(str(SCRIPTS))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> None:
        for _ in range(parts):
            tokens, labels = torch.randint(1, 1000, (batch, 32)), torch.rand(batch)
            (nn.functional.binary_cross_entropy_with_logits(net(tokens), labels) / parts).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def scaled(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[], Any], clip: float) -> Step:
    """A step in half precision."""
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        images, labels = batch()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def amp(batch: int = 32) -> Step:
    def block(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
    net = nn.Sequential(block(3, 32), block(32, 64), nn.MaxPool2d(2), block(64, 128), *ends)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return scaled(net, optimizer, lambda: (torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))), 5.0)


def like_timm(batch: int = 16) -> Step:
    net = parts_of("like_timm")["SmallResNet"](100)
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD(
        [{"params": [p for p in net.parameters() if (p.ndim <= 1) is flat]} for flat in (True, False)],
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    inner = scaled(net, optimizer, lambda: (torch.rand(batch, 3, 32, 32), torch.randint(100, (batch,))), 1.0)

    def step() -> None:
        inner()
        average.update_parameters(net)

    return step


def hf_trainer(batch: int = 4) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=64, n_layer=2, n_head=4, use_cache=False))
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step() -> None:
        tokens = torch.randint(1000, (batch, 64))
        net(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens.clone()).loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        net.zero_grad()

    return step


def lightning_fit(batch: int = 64) -> Step:
    net = parts_of("lightning_fit")["Autoencoder"]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def passes(x: torch.Tensor) -> None:
        loss = nn.functional.mse_loss(net.decoder(net.encoder(x + 0.1 * torch.randn(x.shape))), x)
        optimizer.zero_grad()
        loss.backward()

    def step() -> None:
        x = torch.rand(batch, 784)
        passes(x)  # as Lightning has it, the loss goes before the optimizer steps
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return step


def accelerated(batch: int = 16) -> Step:
    layers = nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)
    net = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)

    def step() -> None:
        for _ in range(2):
            x, y = torch.randn(batch, 128), torch.randint(10, (batch,))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                found = net(x)
            (nn.functional.cross_entropy(found.float(), y) / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def sft_lora(batch: int = 4, parts: int = 2) -> Step:
    trainer = parts_of("sft_lora")["build_trainer"]()  # for TRL's own loss
    net, trained = trainer.model, [p for p in trainer.model.parameters() if p.requires_grad]
    net.train()
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)

    def step() -> None:
        for _ in range(parts):
            tokens = torch.randint(503, (batch, 32))
            inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = trainer.compute_loss(net, inputs, num_items_in_batch=torch.tensor(256))
            loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
