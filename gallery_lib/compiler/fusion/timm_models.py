"""Patterns of BatchNorm → ReLU and BatchNorm → add → ReLU in timm's models, for `batch_norm`.

`BatchNormAct2d`, a layer that holds its activation, is in most of timm's convolutional models
(VoVNet, for instance). timm's ResNets have both patterns in their blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.layers import BatchNormAct2d
from timm.models import resnet
from torch import Tensor, nn

from gallery_lib.compiler.fusion.batch_norm import (
    become,
    fuse_pair,
    has_hooks,
    is_plain_relu,
    normalised,
    takes_operator,
    train_with_operator,
)


class FusedBatchNormAct2d(BatchNormAct2d):
    """BatchNormAct2d whose activation is ReLU, and a part of the operator."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what BatchNormAct2d returns."""
        return train_with_operator(self, x) if takes_operator(self, x) else super().forward(x)


def fuse_layer(layer: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """Fuse a BatchNormAct2d with ReLU and without dropout; return 1, or 0 for other layers.

    The result is still one layer, so it may be used anywhere.
    """
    if type(layer) is not BatchNormAct2d or "forward" in vars(layer):
        return 0
    if not is_plain_relu(layer.act) or type(layer.drop) is not nn.Identity or has_hooks(layer.drop):
        return 0
    layer.__class__ = FusedBatchNormAct2d
    return 1


class FusedBasicBlock(resnet.BasicBlock):
    """BasicBlock whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what BasicBlock returns."""
        out = self.conv2(self.aa(normalised(self.bn1, self.conv1(x))))
        return normalised(self.bn2, out, x if self.downsample is None else self.downsample(x))


class FusedBottleneck(resnet.Bottleneck):
    """Bottleneck whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what Bottleneck returns."""
        out = self.conv2(normalised(self.bn1, self.conv1(x)))
        out = self.conv3(self.aa(normalised(self.bn2, out)))
        return normalised(self.bn3, out, x if self.downsample is None else self.downsample(x))


_BLOCKS: dict[type, tuple[type, tuple[str, ...]]] = {
    resnet.BasicBlock: (FusedBasicBlock, ("1", "2")),
    resnet.Bottleneck: (FusedBottleneck, ("1", "2", "3")),
}


def fuse_block(block: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """Fuse all batch norms of a residual block or none; return their number.

    Blocks with attention, drop path or drop block are left alone.
    """
    fused, numbers = _BLOCKS.get(type(block), (None, ()))
    if (
        fused is None
        or block.se is not None
        or block.drop_path is not None
        or type(block.drop_block) is not nn.Identity
    ):
        return 0
    layers, activations = (
        [getattr(block, kind + number) for number in numbers] for kind in ("bn", "act")
    )
    if not all(map(may_change, layers)) or not all(map(is_plain_relu, activations)):
        return 0
    return become(block, fused, layers)


def fuse_stem(model: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """Fuse the first batch norm of a ResNet with its ReLU; return 1, or 0 for other models."""
    return fuse_pair(model, "bn1", "act1", may_change) if type(model) is resnet.ResNet else 0


RELU, BLOCKS = [fuse_layer, fuse_stem], [fuse_block]
