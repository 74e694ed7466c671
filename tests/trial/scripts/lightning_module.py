"""A LightningModule with validation, trained by lightning.Trainer."""

import lightning as L
import torch
from torch import nn


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)]


data = torch.utils.data.TensorDataset(torch.randn(4096, 128), torch.randint(10, (4096,)))
loader = torch.utils.data.DataLoader(data, batch_size=64)
trainer = L.Trainer(
    max_epochs=200, accelerator="auto", devices=1, logger=False, enable_progress_bar=False
)
trainer.fit(Classifier(), loader, loader)
