"""A data set that loading processes read, behind `if __name__ == "__main__"`."""

import torch
from torch import nn


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        image = torch.randn(3, 48, 48, generator=torch.Generator().manual_seed(index))
        return image, index % 10


def main():
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Pictures(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 5, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5184, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(200):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
