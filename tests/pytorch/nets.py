"""Small workloads for the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def mlp3(batch: int = 128) -> Any:
    """The bundled trace `mlp3`, as its file was made."""
    net = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        x, y = torch.empty(batch, 784), torch.empty(batch, dtype=torch.int64)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
