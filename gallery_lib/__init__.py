"""Helper package of a gallery of notebooks for accelerated PyTorch training.

    from gallery_lib import accelerate
    model, loader, optimizer = accelerate(model, loader, optimizer)

Importing the package changes no global state. It imports torch only when something needs torch.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` imports for ten milliseconds
if TYPE_CHECKING:
    from typing import Any

    from gallery_lib.acceleration import accelerate
    from gallery_lib.config import Config, LaunchConfig, TrainConfig
    from gallery_lib.launcher.job import launch
    from gallery_lib.notebooks.cells import task as notebook

_WHERE = {
    "accelerate": "gallery_lib.acceleration",
    **dict.fromkeys(("Config", "LaunchConfig", "TrainConfig"), "gallery_lib.config"),
    "launch": "gallery_lib.launcher.job",
    "notebook": "gallery_lib.notebooks.cells.task",  # a module, by a short name for cells
}

__all__ = ["Config", "LaunchConfig", "TrainConfig", "accelerate", "launch", "notebook"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("gallery_lib")
    if name not in _WHERE:
        raise AttributeError(f"module 'gallery_lib' has no attribute {name!r}")
    try:
        module = importlib.import_module(_WHERE[name])
    except ModuleNotFoundError as error:
        from gallery_lib.errors import missing_package

        raise missing_package(error) or error from None
    value = module if name == "notebook" else getattr(module, name)
    globals()[name] = value
    return value
