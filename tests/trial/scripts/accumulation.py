"""Gradients of four batches for each step, and clipping."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
data = torch.randn(2000, 256)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
ACCUMULATION = 4
for epoch in range(500):
    optimizer.zero_grad(set_to_none=True)
    for number, batch in enumerate(loader):
        loss = nn.functional.mse_loss(model(batch), batch) / ACCUMULATION
        loss.backward()
        if (number + 1) % ACCUMULATION == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    print(f"{epoch}: {loss.item() * ACCUMULATION:.4f}")
