"""Checkpoints of a training: saved in the background, found whole, gone on from exactly.

- `training_state`: the parts of a training, taken apart and put back, with one format for every
  implementation of an optimizer.
- `saver`: when to save, agreed by all ranks; torch.distributed.checkpoint writes, in a thread.
  `staging`: the copy that is written.
- `folders`, `manifest`: a checkpoint is whole or not there; each file has its digest (`digests`).
- `choice`: the newest that is whole, or the one that was named. `reading`: files are data.
- `notice`: SIGTERM and SIGUSR1, heard at the end of a step.
- `script`: `Checkpoint`, for a training script, in two lines.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gallery_lib.checkpoint.script import Checkpoint

__all__ = ["Checkpoint"]


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        return importlib.import_module("gallery_lib.checkpoint.script").Checkpoint
    raise AttributeError(f"module 'gallery_lib.checkpoint' has no attribute {name!r}")
