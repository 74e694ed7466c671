"""Held-out metrics of a trained model."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.system.processes import end_with_parent
from gallery_lib.train import precision
from gallery_lib.train.session import Session, items_per_batch


def _batches(session: Session) -> DeviceLoader:
    """Return this rank's share of the held-out data, in batches on its device."""
    data: Any = session.splits.held_out
    loader = DataLoader(
        data,
        batch_size=items_per_batch(session.config, session.task),
        sampler=range(process_group.rank(), len(data), process_group.world_size()),
        num_workers=session.config.workers,
        collate_fn=getattr(data, "collate", None),
        worker_init_fn=end_with_parent,
    )
    return DeviceLoader(loader, session.loader.device, session.loader.memory_format, shard=False)


def evaluate(session: Session) -> dict[str, float]:
    """Return the held-out metrics, each sample once.

    Evaluation runs eagerly, since it is not what is being compiled.
    """
    model, batches = session.plain, _batches(session)
    sums: dict[str, Any] = {}
    model.eval()
    with (
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),
        precision.autocast(session.autocast_dtype, batches.device.type),
    ):
        for batch in batches:
            for name, (total, count) in session.task.metrics(model, batch).items():
                pair = (
                    total.double(),
                    torch.tensor(float(count), device=batches.device, dtype=torch.float64),
                )
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + pair[0], before[1] + pair[1])
    model.train()
    means = {
        name: process_group.sum_over_ranks(total) / process_group.sum_over_ranks(count)
        for name, (total, count) in sums.items()
    }
    if session.task.summary:
        return session.task.summary(means)
    return {name: float(mean) for name, mean in means.items()}
