"""Where timm's models have BatchNorm → ReLU and BatchNorm → add → ReLU (see fused_batch_norm).

`BatchNormAct2d` is in most of its convolutional models (VoVNet, for instance), as a layer that holds its activation; its
ResNets have both patterns in their blocks.
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
    """Whose activation is ReLU, and a part of the operator."""

    def forward(self, x: Tensor) -> Tensor:
        """As BatchNormAct2d."""
        return train_with_operator(self, x) if takes_operator(self, x) else super().forward(x)


def fuse_layer(layer: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """A BatchNormAct2d with ReLU and without dropout. It stays one layer, so it may be used anywhere."""
    if type(layer) is not BatchNormAct2d or "forward" in vars(layer):
        return 0
    if not is_plain_relu(layer.act) or type(layer.drop) is not nn.Identity or has_hooks(layer.drop):
        return 0
    layer.__class__ = FusedBatchNormAct2d
    return 1


class FusedBasicBlock(resnet.BasicBlock):
    """Whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """As BasicBlock."""
        out = self.conv2(self.aa(normalised(self.bn1, self.conv1(x))))
        return normalised(self.bn2, out, x if self.downsample is None else self.downsample(x))


class FusedBottleneck(resnet.Bottleneck):
    """Whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """As Bottleneck."""
        out = self.conv2(normalised(self.bn1, self.conv1(x)))
        out = self.conv3(self.aa(normalised(self.bn2, out)))
        return normalised(self.bn3, out, x if self.downsample is None else self.downsample(x))


_BLOCKS: dict[type, tuple[type, tuple[str, ...]]] = {
    resnet.BasicBlock: (FusedBasicBlock, ("1", "2")),
    resnet.Bottleneck: (FusedBottleneck, ("1", "2", "3")),
}


def fuse_block(block: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """A residual block without attention, drop path and drop block; all of it or nothing."""
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
    """The first batch norm of a ResNet."""
    return fuse_pair(model, "bn1", "act1", may_change) if type(model) is resnet.ResNet else 0


RELU, BLOCKS = [fuse_layer, fuse_stem], [fuse_block]
