"""ResNet-50 through accelerate(): any number of processes, automatic mixed precision."""

import argparse
import time

import torch
import torchvision

from gallery_lib import Config, accelerate

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
config = Config()
dtype = torch.float16 if torch.cuda.is_available() else torch.bfloat16
config.compute.fp16 = dtype is torch.float16
config.compute.bf16 = dtype is torch.bfloat16
model, train_loader = accelerate(model, train_loader, config)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
device_type = "cuda" if torch.cuda.is_available() else "cpu"
scaler = torch.amp.GradScaler(device_type, enabled=dtype is torch.float16)
distributed = torch.distributed.is_initialized()  # not under plain python3
rank = torch.distributed.get_rank() if distributed else 0
processes = torch.distributed.get_world_size() if distributed else 1

for epoch in range(options.epochs):
    model.train()
    start_time = time.time()
    for i, (inputs, labels) in enumerate(train_loader, 1):
        optimizer.zero_grad()
        with torch.autocast(device_type, dtype=dtype):
            outputs = model(inputs)
            loss = criterion(outputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % options.log_steps == 0 and rank == 0:
            seconds = time.time() - start_time
            throughput = options.batch_size * options.log_steps / seconds * processes
            print(
                f"Epoch: {epoch}, Step: {i}, Loss: {loss:.4f}, "
                f"Throughputs: {throughput:.4f} samples/s"
            )
            start_time = time.time()
