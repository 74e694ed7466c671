"""U-Net: an image in, a class per pixel out.

Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015.
An encoder halves the image four times while it doubles the channels. A decoder goes back up, and
each of its levels also sees the encoder's output of the same size.

This variant pads its convolutions, so the output is as large as the input. It normalises batches.
It enlarges bilinearly, so that the lowest two levels both have 512 channels. An image of any size
will do. Where halving rounds down (959 → 479 → 239 …), the decoder's side is padded to the
encoder's.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512)
"""Channels of the encoder's levels, from the full size to a sixteenth of it."""


class DoubleConvolution(nn.Sequential):
    """(3×3 convolution, batch norm, ReLU) twice: [N, inputs, H, W] → [N, outputs, H, W]."""

    def __init__(self, inputs: int, outputs: int, between: int | None = None) -> None:
        """Build two convolutions, with `between` channels (by default `outputs`) between them."""
        between = between or outputs
        super().__init__(
            nn.Conv2d(inputs, between, 3, padding=1),
            nn.BatchNorm2d(between),
            nn.ReLU(inplace=True),
            nn.Conv2d(between, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """One level up in the decoder.

    `below` [N, C, h, w] is doubled, padded to `beside` [N, C, H, W], joined to it, and convolved.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        """Build the level's convolutions, for `inputs` channels after the join."""
        super().__init__()
        self.convolutions = DoubleConvolution(inputs, outputs, between=inputs // 2)

    def forward(self, below: Tensor, beside: Tensor) -> Tensor:
        """Return the level's result, [N, outputs, H, W]."""
        # [N, C, 2h, 2w]
        larger = F.interpolate(below, scale_factor=2.0, mode="bilinear", align_corners=True)
        missing_rows = beside.shape[2] - larger.shape[2]  # 0 or 1, since halving rounds down
        missing_columns = beside.shape[3] - larger.shape[3]
        larger = F.pad(larger, (0, missing_columns, 0, missing_rows))
        return self.convolutions(torch.cat((beside, larger), dim=1))


class UNet(nn.Module):
    """Images [N, 3, H, W] → logits [N, classes, H, W]; H and W are at least 16."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.first = DoubleConvolution(3, WIDTHS[0])
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in itertools.pairwise(WIDTHS))
        # Each level up joins its own channels with as many from below, and leaves as many as the
        # next one has.
        sizes = ((512, 256), (256, 128), (128, 64), (64, 64))
        self.up = nn.ModuleList(Up(2 * width, next_width) for width, next_width in sizes)
        self.classify = nn.Conv2d(WIDTHS[0], classes, 1)
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        x = self.first(images)
        beside = []
        for level in self.down:
            beside.append(x)
            x = level(F.max_pool2d(x, 2))
        for level in self.up:
            x = level(x, beside.pop())
        return self.classify(x)


def _initialize(model: nn.Module) -> None:
    """Initialise the 3×3 convolutions so that activations keep their size from layer to layer.

    He et al., "Delving Deep into Rectifiers", 2015. While training, batch norm also sees to that.
    With these weights the untrained model can be evaluated, too.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
