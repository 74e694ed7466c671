"""Averaged weights beside the model, updated after each step and used to evaluate."""

import copy

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.SiLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.SiLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
images, labels = torch.randn(40, 16, 3, 32, 32), torch.randint(10, (40, 16))
for epoch in range(500):
    for image, label in zip(images, labels):
        loss = nn.functional.cross_entropy(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average.state_dict().values(), model.state_dict().values()):
                if mean.dtype.is_floating_point:
                    mean.lerp_(value, 0.01)
    average.eval()
    with torch.no_grad():
        print(epoch, (average(images[0]).argmax(1) == labels[0]).float().mean().item())
