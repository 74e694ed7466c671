"""A script that calls torch.compile itself."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step_model = torch.compile(model)
data = torch.randn(64, 64, 256)
for epoch in range(1000):
    for batch in data:
        loss = nn.functional.mse_loss(step_model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
