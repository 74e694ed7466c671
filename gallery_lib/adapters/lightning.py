"""lightning.Trainer: `Trainer(callbacks=[GalleryCallback()])`."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # its other name
    from pytorch_lightning import Callback  # type: ignore[assignment]

from gallery_lib.adapters import in_place
from gallery_lib.optim.adoption import accelerate_optimizer


class GalleryCallback(Callback):
    """Compile the parts of a LightningModule in place, and give optimizers their fast step.

    `training_step` itself stays Python: it logs. A module that was given to `fit` compiled
    (`torch.compile(module, backend="gallery")`) stays as it is.

    Example:
        trainer = lightning.Trainer(max_epochs=1, callbacks=[GalleryCallback()])
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Compile before a strategy wraps the module."""
        if stage == "fit" and getattr(pl_module, "_compiler_ctx", None) is None:
            for part in in_place.called_parts(pl_module):
                in_place.compile_in_place(part, trainer.strategy.root_device)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Give optimizers their fast step, with the states that a checkpoint may have brought."""
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        for optimizer in trainer.optimizers:
            in_place.say(accelerate_optimizer(optimizer, scaled=scaled))
