"""lightning.Fabric: `Fabric(callbacks=[GalleryCallback()])`."""

from __future__ import annotations

from typing import Any

import torch

from gallery_lib.adapters import in_place
from gallery_lib.optim.adoption import accelerate_optimizer


class GalleryCallback:
    """Compile what `fabric.setup` is given, in place; optimizers have their fast step after one.

    Example:
        fabric = Fabric(callbacks=[GalleryCallback()])
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Compile the user's module, inside what the strategy has put around it."""
        if not hasattr(module._forward_module, "_orig_mod"):  # the user's own torch.compile
            in_place.compile_in_place(module.module, fabric.device)

    def on_after_optimizer_step(self, strategy: Any, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer its fast step once."""
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            scaled = getattr(strategy.precision, "scaler", None) is not None
            in_place.say(accelerate_optimizer(optimizer, scaled=scaled))
