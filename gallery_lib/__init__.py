"""Helper package of a gallery of notebooks for accelerated PyTorch training.

    from gallery_lib import accelerate
    model, loader, optimizer = accelerate(model, loader, optimizer)

Importing it changes no global state and does not import torch until something needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gallery_lib.acceleration import accelerate
    from gallery_lib.config import Config, LaunchConfig, TrainConfig
    from gallery_lib.launcher import launch

_WHERE = {
    "accelerate": "gallery_lib.acceleration",
    "Config": "gallery_lib.config",
    "LaunchConfig": "gallery_lib.config",
    "TrainConfig": "gallery_lib.config",
    "launch": "gallery_lib.launcher",
}

__all__ = ["Config", "LaunchConfig", "TrainConfig", "accelerate", "launch"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gallery_lib' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
