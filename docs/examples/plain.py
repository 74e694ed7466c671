"""Train ResNet-18 on a folder of images (ImageFolder's layout) in plain PyTorch."""

import argparse
import json
import pathlib
import time

import torch
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader
from torchvision.transforms import v2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--data",
    default=".cache/data/imagenet-small/train",
    help="a folder with a folder for each class",
)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--image_size", type=int, default=64)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
parser.add_argument("--log", help="write each step's seconds and loss to this JSON file")
options = parser.parse_args()

torch.manual_seed(0)
transform = v2.Compose(
    [v2.Resize((options.image_size,) * 2), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
)
dataset = torchvision.datasets.ImageFolder(options.data, transform)

device_type = "cuda" if torch.cuda.is_available() else "cpu"
device = torch.device(device_type)
model = torchvision.models.resnet18(num_classes=len(dataset.classes)).to(device)
loader = DataLoader(
    dataset, batch_size=options.batch_size, shuffle=True, drop_last=True, num_workers=1
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

seconds, losses = [], []
while len(losses) < options.steps:
    began = time.perf_counter()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=options.bf16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
        if len(losses) % 10 == 0:
            print(
                f"step {len(losses)}: loss {losses[-1]:.3f}, "
                f"{options.batch_size / seconds[-1]:.1f} images/s",
                flush=True,
            )
        if len(losses) == options.steps:
            break
        began = time.perf_counter()

if options.log:
    pathlib.Path(options.log).write_text(json.dumps({"seconds": seconds, "losses": losses}))
