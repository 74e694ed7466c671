"""U-Net: output size, odd sizes on the way, and the output of an untrained model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gallery_lib.models.unet import UNet, Up


@pytest.mark.parametrize(("height", "width"), [(16, 16), (33, 47), (40, 59), (31, 16)])
def test_logits_are_as_large_as_the_image_also_where_halving_rounds_down(height, width):
    with torch.no_grad():
        logits = UNet(classes=2).eval()(torch.randn(1, 3, height, width))
    assert logits.shape == (1, 2, height, width)


def test_a_level_up_enlarges_bilinearly_with_corners_kept_and_pads_at_the_end():
    up = Up(4, 3)
    seen: list[torch.Tensor] = []
    up.convolutions.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    below, beside = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 8)
    assert up(below, beside).shape == (1, 3, 7, 8)
    joined = seen[0]
    assert torch.equal(joined[:, :2], beside)
    larger = F.interpolate(below, (6, 8), mode="bilinear", align_corners=True)
    assert torch.equal(joined[:, 2:, :6], larger)
    assert not joined[:, 2:, 6].any()


def test_activations_keep_their_size_in_an_untrained_model():
    torch.manual_seed(0)
    # The model has seen nothing, so its running statistics normalise nothing.
    model = UNet().eval()
    sizes: list[float] = []
    for level in (model.first, *model.down):
        level.register_forward_hook(
            lambda module, args, output: sizes.append(float(output.square().mean()))
        )
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 95))
    assert all(0.1 < size < 10 for size in sizes), sizes


class DecidedOnce(nn.Module):
    """ReLU that decides in its first pass which elements it lets through.

    It lets the same ones through in the second pass.
    """

    mask: torch.Tensor | None = None
    decided_otherwise = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = x.detach() > 0
        self.decided_otherwise = int((self.mask != (x > 0)).sum())
        return x * self.mask


@pytest.mark.slow
def test_gradients_in_fp32_agree_with_float64_with_one_image_a_batch():
    """float64 follows the decisions of fp32's ReLUs.

    One element within rounding of zero that a ReLU decides the other way moves gradients by up to 2
    %, with convolutions that round well too. Which element, if any, depends on the CPU.
    """
    torch.manual_seed(0)
    model = UNet()
    rectifiers = [DecidedOnce() for module in model.modules() if isinstance(module, nn.ReLU)]
    names = [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)]
    assert len(names) == 18  # two a level
    for name, rectifier in zip(names, rectifiers, strict=True):
        model.set_submodule(name, rectifier)
    image = torch.randn(1, 3, 64, 95)
    mask = (image.mean(1) > 0).long()
    gradients = []
    for dtype in (torch.float32, torch.float64):
        model.to(dtype).zero_grad()
        F.cross_entropy(model(image.to(dtype)), mask).backward()
        gradients.append({name: p.grad.double() for name, p in model.named_parameters()})
    single, exact = gradients
    assert len(exact) == len(list(model.parameters()))
    assert sum(rectifier.decided_otherwise for rectifier in rectifiers) < 20  # of 2.5 million
    # Biases before a batch norm have gradients below this.
    negligible = 1e-5 * max(g.square().mean().sqrt() for g in exact.values())
    errors = {
        name: (single[name] - g).norm() / g.norm()
        for name, g in exact.items()
        if g.square().mean().sqrt() > negligible
    }
    assert len(errors) > 50 and max(errors.values()) < 1e-2
