"""Train a small model with another library, plain and accelerated, and print the losses as JSON.

    python -m tests.plug.libraries LIBRARY…      (under torchrun: on several processes)

Standard output of rank 0: {library: {"plain": […], "ours": […], "keys": state dict's keys,
"optimizer": name of the optimizer's class at the end, "after off": its module once it is off}}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

STEPS, BATCH = 6, 4


class Model(nn.Module):
    """An image classifier that returns loss and logits, as Trainer wants them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8 * 64, 10)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.features(images).flatten(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    """As many samples as all processes take in STEPS steps."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        count = STEPS * BATCH * int(os.environ.get("WORLD_SIZE", 1))
        self.images = torch.randn(count, 3, 16, 16, generator=generator)
        self.labels = torch.randint(0, 10, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"images": self.images[index], "labels": self.labels[index]}


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def _loader() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(Data(), batch_size=BATCH)


def trainer(ours: bool, folder: str) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    from gallery_lib.adapters.trainer import GalleryCallback

    class Losses(Trainer):
        def training_step(self, *given: Any, **named: Any) -> Tensor:
            loss = super().training_step(*given, **named)
            seen.append(loss.item())
            return loss

    seen: list[float] = []
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        learning_rate=1e-3,
        optim="adamw_torch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        ddp_backend="gloo" if "RANK" in os.environ else None,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=False,
    )
    run = Losses(
        Model(), arguments, train_dataset=Data(), callbacks=[GalleryCallback()] if ours else None
    )
    run.train()
    return _result(seen, run.model, getattr(run.optimizer, "optimizer", run.optimizer))


def lightning(ours: bool, folder: str) -> dict[str, Any]:
    import lightning.pytorch as pl

    from gallery_lib.adapters.lightning import GalleryCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any) -> Tensor:
            loss: Tensor = self.model(**batch)["loss"]
            seen.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _adamw(self)

    seen: list[float] = []
    world = int(os.environ.get("WORLD_SIZE", 1))
    run = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[GalleryCallback()] if ours else [],
    )
    module = Module()
    run.fit(module, _loader())
    return _result(seen, module, run.optimizers[0])


def fabric(ours: bool, folder: str) -> dict[str, Any]:
    from lightning_fabric import Fabric

    from gallery_lib.adapters.fabric import GalleryCallback

    world = int(os.environ.get("WORLD_SIZE", 1))
    run = Fabric(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        callbacks=[GalleryCallback()] if ours else [],
    )
    run.launch()
    plain = Model()
    model, optimizer = run.setup(plain, _adamw(plain))
    losses = _by_hand(run, model, optimizer, run.setup_dataloaders(_loader()))
    return _result(losses, plain, optimizer.optimizer)


def _by_hand(run: Any, model: nn.Module, optimizer: Any, loader: Any) -> list[float]:
    """Train in the loop that users of Fabric and Accelerate write, and return the losses."""
    seen = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        run.backward(loss)
        optimizer.step()
        seen.append(loss.item())
    return seen


def _by_accelerate(run: Any, model: nn.Module, given: torch.optim.Optimizer) -> dict[str, Any]:
    model, optimizer, loader = run.prepare(model, given, _loader())
    losses = _by_hand(run, model, optimizer, loader)
    return _result(losses, run.unwrap_model(model, keep_torch_compile=False), optimizer.optimizer)


def accelerate(ours: bool, folder: str) -> dict[str, Any]:
    from accelerate import Accelerator

    plain = Model()
    model = torch.compile(plain, backend="gallery") if ours else plain
    return _by_accelerate(Accelerator(cpu=True), model, _adamw(plain))


def plug(ours: bool, folder: str) -> dict[str, Any]:
    """Accelerate's own loop, with its own compilation by Inductor in both."""
    from accelerate import Accelerator

    if ours:
        import gallery_lib.plug as plug_in

        plug_in.on()
    run, plain = Accelerator(cpu=True, dynamo_backend="inductor"), Model()
    optimizer = _adamw(plain)
    result = _by_accelerate(run, plain, optimizer)
    if ours:
        plug_in.off()
        result["after off"] = type(optimizer).__module__
    return result


def timm(ours: bool, folder: str, *, parallel_first: bool = False) -> dict[str, Any]:
    """What timm's train.py does with `--torchcompile`: a task compiled, then made parallel."""
    import timm as library
    from timm.optim import create_optimizer_v2
    from timm.task import ClassificationTask
    from timm.utils import NativeScaler
    from timm.utils.distributed import init_distributed_device_so

    distributed = "RANK" in os.environ
    if distributed and not torch.distributed.is_initialized():
        init_distributed_device_so("cpu", dist_backend="gloo")
    torch.manual_seed(0)
    plain = library.create_model("test_vit", img_size=16, patch_size=4, num_classes=10)
    task = ClassificationTask(plain, torch.nn.CrossEntropyLoss(), device=torch.device("cpu"))
    optimizer = create_optimizer_v2(plain, opt="adamw", lr=1e-3)
    scaler, seen = NativeScaler(device="cpu"), []
    if distributed and parallel_first:
        task.prepare_distributed()
    if ours:
        task.compile(backend="gallery", mode=None)
    if distributed and not parallel_first:
        task.prepare_distributed()
    sampler = torch.utils.data.DistributedSampler(Data(), shuffle=False) if distributed else None
    for batch in torch.utils.data.DataLoader(Data(), batch_size=BATCH, sampler=sampler):
        loss = task(batch["images"], batch["labels"])["loss"]
        scaler(loss, optimizer, clip_grad=1.0, parameters=list(plain.parameters()))
        optimizer.zero_grad()
        seen.append(loss.item())
    return _result(seen, plain, optimizer)


def timm_before(ours: bool, folder: str) -> dict[str, Any]:
    """The order of timm's train.py of earlier versions: parallel first, then compiled."""
    return timm(ours, folder, parallel_first=True)


def _result(losses: list[float], model: nn.Module, optimizer: Any) -> dict[str, Any]:
    kind = type(optimizer)
    return {
        "losses": losses,
        "keys": sorted(model.state_dict()),
        "optimizer": f"{kind.__module__}.{kind.__name__}",
    }


LIBRARIES: dict[str, Callable[[bool, str], dict[str, Any]]] = {
    one.__name__: one for one in (trainer, lightning, fabric, accelerate, plug, timm, timm_before)
}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            both = [LIBRARIES[name](ours, folder) for ours in (False, True)]
            results[name] = dict(zip(("plain", "ours"), both, strict=True))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
