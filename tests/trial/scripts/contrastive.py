"""Two views of each image through one encoder, and a contrastive loss over the batch."""

import torch
from torch import nn
from torch.nn import functional as F

encoder = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
)
projector = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
weights = [*encoder.parameters(), *projector.parameters()]
optimizer = torch.optim.AdamW(weights, lr=1e-3)
images = torch.rand(20, 32, 3, 32, 32)


def view(batch):
    batch = batch.flip(3) if torch.rand(()) < 0.5 else batch
    return batch + 0.1 * torch.randn_like(batch)


for epoch in range(500):
    for batch in images:
        one, two = (F.normalize(projector(encoder(view(batch))), dim=1) for _ in range(2))
        logits = one @ two.T / 0.1
        target = torch.arange(len(batch))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
