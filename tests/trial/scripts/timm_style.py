"""timm's model, optimizer, schedule and averaged weights, in a loop as its script's."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3

model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10)
ema = ModelEmaV3(model, decay=0.99)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-4, weight_decay=0.05)
scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=1000, warmup_epochs=1)
criterion = LabelSmoothingCrossEntropy(0.1)
images, labels = torch.randn(16, 8, 3, 64, 64), torch.randint(10, (16, 8))
updates = 0
for epoch in range(epochs):
    losses = AverageMeter()
    model.train()
    for image, label in zip(images, labels):
        optimizer.zero_grad()
        loss = criterion(model(image), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model, step=updates)
        updates += 1
        scheduler.step_update(num_updates=updates)
        losses.update(loss.item(), len(image))
    scheduler.step(epoch + 1)
    print(f"epoch {epoch}: {losses.avg:.4f}")
