"""Checkpoints of a training: saved in the background, gone on from exactly.

- `folders`: a checkpoint is one file, whole or not there; which one to go on from.
- `state`: the state of a training, taken and put back.
- `training`: `Checkpoint`, for a training script, in two lines, and for the launcher's runs.
  SIGTERM and SIGUSR1 are heard at the end of a step.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gallery_lib.checkpoint.training import Checkpoint

__all__ = ["Checkpoint"]


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        return importlib.import_module("gallery_lib.checkpoint.training").Checkpoint
    raise AttributeError(f"module 'gallery_lib.checkpoint' has no attribute {name!r}")
