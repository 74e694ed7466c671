"""A loop that Hugging Face Accelerate has prepared."""

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(200):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.print(epoch, loss.item())
