"""A declared precision that the training does not have is said, once, and no other."""

import warnings
from typing import Any

import pytest
import torch
from refusal import refused
from small_models import image_model
from torch import nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques

IMAGES = torch.randn(2, 3, 8, 8)


def declared(name: str = "bf16") -> Config:
    config = Config.plain()
    setattr(config.compute, name, True)
    return config


def step(changed: nn.Module, **autocast: Any) -> torch.Tensor:
    with torch.autocast("cpu", **autocast):
        return changed(IMAGES).float().sum()


def test_bf16_without_autocast_is_said_to_be_fp32_once():
    changed, _ = accelerate(image_model(), None, declared())
    with pytest.warns(UserWarning, match=r"is called in fp32.*torch\.autocast\(\"cpu\"") as said:
        changed(IMAGES).sum().backward()
        changed(IMAGES).sum().backward()
    assert len(said) == 1 and said[0].filename == __file__
    assert techniques(changed)["precision"].startswith("fp32; config.compute.bf16 declares")


@pytest.mark.parametrize("kind", ["float16 autocast", "float64", "compiled"])
def test_another_precision_than_declared_is_named(kind):
    config = Config() if kind == "compiled" else Config.plain()
    config.compute.bf16, config.compiler.backend = True, "aot_eager"
    made = image_model().double() if kind == "float64" else image_model()
    changed, _ = accelerate(made, None, config)
    with pytest.warns(UserWarning, match=f"is called in {'fp32' if kind == 'compiled' else kind}"):
        if kind == "float16 autocast":
            step(changed, dtype=torch.float16)
        else:
            changed(IMAGES.double() if kind == "float64" else IMAGES).sum().backward()


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = image_model()

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return {"scores": self.body(images)}


AS_DECLARED = {
    "autocast": (image_model, lambda changed: step(changed, dtype=torch.bfloat16)),
    "autocast inside": (Inside, lambda changed: changed(IMAGES)["scores"].sum()),
    "bfloat16 model": (
        lambda: image_model().bfloat16(),
        lambda changed: changed(IMAGES.bfloat16()).sum(),
    ),
    "without gradients": (image_model, torch.no_grad()(lambda changed: changed(IMAGES))),
    "evaluation": (image_model, lambda changed: changed.eval()(IMAGES)),
}


@pytest.mark.parametrize("kind", AS_DECLARED)
def test_nothing_is_said_where_the_training_is_as_declared(kind):
    build, call = AS_DECLARED[kind]
    changed, _ = accelerate(build(), None, declared())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(changed)
    assert "precision" not in techniques(changed)


def test_two_precisions_are_refused_before_anything_is_changed():
    config, plain = declared(), image_model()
    config.compute.fp16 = True
    with refused("compute.bf16", "both set"):
        accelerate(plain, None, config)
    accelerate(plain, None, Config.plain())
