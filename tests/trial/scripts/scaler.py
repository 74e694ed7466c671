"""Autocast and a GradScaler, as written for fp16 on a GPU; on a CPU autocast is bf16."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16
model = nn.Sequential(
    nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)
data = torch.utils.data.TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
for epoch in range(500):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(epoch, loss.item())
