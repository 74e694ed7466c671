"""ResNet-50 through accelerate(): any number of processes, with torchrun or python3."""

import argparse
import time

import torch
import torchvision

from gallery_lib import accelerate

parser = argparse.ArgumentParser()
parser.add_argument("--images", type=int, default=6400)
parser.add_argument("--image_size", type=int, default=224)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--log_steps", type=int, default=20)
options = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(options.images, 3, options.image_size, options.image_size)
labels = torch.randint(0, 100, (options.images,))
dataset = torch.utils.data.TensorDataset(inputs, labels)
train_loader = torch.utils.data.DataLoader(
    dataset, batch_size=options.batch_size, shuffle=True, num_workers=1
)
model = torchvision.models.resnet50(num_classes=100)
model, train_loader = accelerate(model, train_loader)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
distributed = torch.distributed.is_initialized()  # not under plain python3
rank = torch.distributed.get_rank() if distributed else 0
processes = torch.distributed.get_world_size() if distributed else 1

for epoch in range(options.epochs):
    model.train()
    start_time = time.time()
    for i, (inputs, labels) in enumerate(train_loader, 1):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        if i % options.log_steps == 0 and rank == 0:
            seconds = time.time() - start_time
            throughput = options.batch_size * options.log_steps / seconds * processes
            print(
                f"Epoch: {epoch}, Step: {i}, Loss: {loss:.4f}, "
                f"Throughputs: {throughput:.4f} samples/s"
            )
            start_time = time.time()
