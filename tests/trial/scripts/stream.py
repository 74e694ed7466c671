"""An endless stream as IterableDataset."""

import torch
from torch import nn


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        while True:
            x = torch.randn(128, generator=generator)
            yield x, x.cumsum(0)


model = nn.Sequential(nn.Linear(128, 512), nn.Mish(), nn.Linear(512, 128))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Stream(), batch_size=64)):
    loss = nn.functional.smooth_l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item())
