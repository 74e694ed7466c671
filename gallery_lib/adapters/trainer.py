"""transformers.Trainer: `Trainer(…, callbacks=[GalleryCallback()])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from gallery_lib.adapters import in_place
from gallery_lib.optim.adoption import accelerate_optimizer


class GalleryCallback(TrainerCallback):
    """Compile a Trainer's model in place, and give its optimizer its fast step.

    An implementation that `optim=` names stays: Trainer's default is torch's fused AdamW. The
    one-pass one comes with `optimizer_cls_and_kwargs=(gallery_lib.optim.fused_cpu.AdamW, {…})`,
    or `optim="adamw_torch"`.

    Example:
        trainer = Trainer(model, args, train_dataset=data, callbacks=[GalleryCallback()])
    """

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        """Accelerate what `Trainer.train` has prepared."""
        if args.torch_compile:
            in_place.say("torch_compile=True compiles the model; without it this callback does")
        else:
            in_place.compile_in_place(model, args.device)
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper
        in_place.say(accelerate_optimizer(optimizer, scaled=args.fp16))
