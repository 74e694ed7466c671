"""The acceleration inside other libraries' training loops: a callback for each.

Placement, processes, precision, batches and checkpoints stay the library's. A callback compiles the
model in place, so names and checkpoints stay the plain model's, gives optimizers of torch.optim
their fast step, and has the allocator keep large blocks.

    trainer.GalleryCallback     transformers.Trainer
    lightning.GalleryCallback   lightning.Trainer
    fabric.GalleryCallback      lightning.Fabric

Accelerate and timm need none: `torch.compile(model, backend="gallery")`, or `plug`. With
GALLERY_PLUG=1 in the environment, Lightning and Fabric find theirs by entry points.
"""

from __future__ import annotations

import os
from typing import Any


def lightning_callbacks() -> list[Any]:
    """Return what `lightning.Trainer` adds by itself: nothing without GALLERY_PLUG=1."""
    if os.environ.get("GALLERY_PLUG") != "1":
        return []
    from gallery_lib.adapters.lightning import GalleryCallback

    return [GalleryCallback()]


def fabric_callbacks() -> list[Any]:
    """Return what `lightning.Fabric` adds by itself: nothing without GALLERY_PLUG=1."""
    if os.environ.get("GALLERY_PLUG") != "1":
        return []
    from gallery_lib.adapters.fabric import GalleryCallback

    return [GalleryCallback()]
