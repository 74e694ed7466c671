"""A GAN: two networks, two optimizers, and losses in turns."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(
    nn.ConvTranspose2d(32, 64, 4),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.ConvTranspose2d(32, 3, 4, 2, 1),
    nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(32, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(1024, 1),
)
step_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
step_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
images = torch.randn(64, 32, 3, 16, 16)
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
for epoch in range(500):
    for real in images:
        discriminator.zero_grad()
        criterion(discriminator(real), ones).backward()
        fake = generator(torch.randn(32, 32, 1, 1))
        criterion(discriminator(fake.detach()), zeros).backward()
        step_d.step()
        generator.zero_grad()
        criterion(discriminator(fake), ones).backward()
        step_g.step()
    print(epoch)
