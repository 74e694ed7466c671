"""A loop of lightning.Fabric."""

import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(accelerator="auto", devices=1)
fabric.launch()
fabric.seed_everything(3)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(28800, 10)
)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
data = torch.utils.data.TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(10, (512,)))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
for epoch in range(200):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
    fabric.print(f"epoch {epoch}: {loss.item():.4f}")
