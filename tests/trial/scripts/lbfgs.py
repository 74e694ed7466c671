"""L-BFGS with a closure."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
x = torch.randn(512, 64, dtype=torch.float64)
y = x.sin().sum(1, keepdim=True)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for step in range(10_000):
    loss = optimizer.step(closure)
    if step % 50 == 0:
        print(step, loss.item())
