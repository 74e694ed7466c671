"""Trained weights in a file of the run's folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gallery_lib.system.files import atomic_write

WEIGHTS_FILE = "weights.pt"


def save_weights(model: nn.Module, run_dir: Path) -> Path:
    """Write the plain model's state dict, on the CPU, to `weights.pt`, and return the file's path.

    `torch.load(…, weights_only=True)` reads it.
    """
    path = run_dir / WEIGHTS_FILE
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    with atomic_write(path, "wb") as file:
        torch.save(state, file)
    return path
