"""A PyTorch step within a limit: the same loop, the same bits, in less memory. Needs `pip install 'gpumem[torch]'`.

Without a GPU the host plays one: what is "away" lies in memory that PyTorch knows nothing of.
"""

import torch

from gpumem.torch import managed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(steps: int = 8) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (torch.nn.Linear(256, 256), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(512, 256, device=DEVICE)).square().mean().backward()
        optimizer.step()
    return tuple(p.detach().clone() for p in model.parameters())


bare = train()
with managed("12MiB", planner="tensile", wait=True) as run:
    within = train()
print("same bits:", all(torch.equal(a, b) for a, b in zip(bare, within)))
print(run.report())
