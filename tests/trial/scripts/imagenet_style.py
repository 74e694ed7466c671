"""Training and validation with meters, a schedule and checkpoints, as in torch's examples."""

import argparse
import time

import torch
import torchvision
from torchvision import transforms


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / max(self.count, 1):.3f}"


def train(loader, model, criterion, optimizer, device):
    losses, batch_time = AverageMeter("Loss"), AverageMeter("Time")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        images, target = images.to(device, non_blocking=True), target.to(device)
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % 5 == 0:
            print(i, losses, batch_time, flush=True)


def validate(loader, model):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-b", "--batch-size", default=16, type=int)
    parser.add_argument("--lr", default=0.05, type=float)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torchvision.datasets.FakeData(640, (3, 64, 64), 10, transforms.ToTensor())
    loader = torch.utils.data.DataLoader(data, args.batch_size, shuffle=True)
    val = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(32)), args.batch_size)
    model = torchvision.models.resnet18(num_classes=10).to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    for epoch in range(args.epochs):
        train(loader, model, criterion, optimizer, device)
        print("right:", validate(val, model))
        scheduler.step()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
