"""A loop over epochs with dropout, an evaluation and a checkpoint, as in first tutorials."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(4608, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data).argmax(1) == target).sum().item()
    print(f"accuracy {correct / len(loader.dataset):.1%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    images, labels = torch.randn(2048, 1, 28, 28), torch.randint(10, (2048,))
    dataset = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for batch, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch % 10 == 0:
                print(f"epoch {epoch}, batch {batch}, loss {loss.item():.4f}")
        test(model, loader)
        torch.save(model.state_dict(), "mnist.pt")


if __name__ == "__main__":
    main()
