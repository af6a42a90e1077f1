"""Gradients of several batches are added up before each step; a sibling has the model."""

import sys

import numpy as np
import torch
from models import TextClassifier
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
BATCH_SIZE = 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

rng = np.random.default_rng(0)
tokens = torch.from_numpy(rng.integers(1, 1000, (400, 32)))
labels = torch.from_numpy(rng.integers(0, 2, 400)).float()
loader = DataLoader(TensorDataset(tokens, labels), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)

model = TextClassifier(1000, 128)
model.to(device)
criterion = torch.nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)

best = float("inf")
for epoch in range(10):
    running = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        loss = criterion(model(x), y) / ACCUMULATION_STEPS
        loss.backward()
        running += loss.item()
        if (i + 1) % ACCUMULATION_STEPS == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if running < best:
        best = running
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
    print(f"epoch {epoch}: {running / len(loader):.4f}")
