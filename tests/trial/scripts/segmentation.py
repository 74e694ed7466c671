"""A small U-Net with a Dice loss beside cross entropy."""

import torch
from torch import nn
from torch.nn import functional as F


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = double(3, 16), double(16, 32), double(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1, self.head = double(64, 32), double(32, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.up2(self.middle(F.max_pool2d(two, 2)))
        x = self.join2(torch.cat([x, two], 1))
        return self.head(self.join1(torch.cat([self.up1(x), one], 1)))


def dice_loss(logits, target):
    probability, truth = logits.softmax(1)[:, 1], target.float()
    return 1 - (2 * (probability * truth).sum() + 1) / ((probability + truth).sum() + 1)


model = UNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-8)
images = torch.randn(20, 4, 3, 64, 64)
masks = (images.mean(2) > 0).long()
for epoch in range(500):
    for image, mask in zip(images, masks):
        logits = model(image)
        loss = F.cross_entropy(logits, mask) + dice_loss(logits, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
