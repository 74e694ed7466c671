"""Patterns of BatchNorm → ReLU and BatchNorm → add → ReLU in torchvision's ResNets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torchvision.models import resnet

from gallery_lib.compiler.fusion.batch_norm import become, fuse_pair, is_plain_relu, normalised


class FusedBasicBlock(resnet.BasicBlock):
    """BasicBlock whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what BasicBlock returns."""
        out = self.conv2(normalised(self.bn1, self.conv1(x)))
        return normalised(self.bn2, out, x if self.downsample is None else self.downsample(x))


class FusedBottleneck(resnet.Bottleneck):
    """Bottleneck whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what Bottleneck returns."""
        out = self.conv2(normalised(self.bn1, self.conv1(x)))
        out = self.conv3(normalised(self.bn2, out))
        return normalised(self.bn3, out, x if self.downsample is None else self.downsample(x))


_BLOCKS: dict[type, tuple[type, tuple[str, ...]]] = {
    resnet.BasicBlock: (FusedBasicBlock, ("bn1", "bn2")),
    resnet.Bottleneck: (FusedBottleneck, ("bn1", "bn2", "bn3")),
}


def fuse_block(block: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """Fuse all batch norms of a residual block or none; return their number."""
    fused, names = _BLOCKS.get(type(block), (None, ()))
    layers = [getattr(block, name) for name in names]
    if fused is None or not is_plain_relu(block.relu) or not all(map(may_change, layers)):
        return 0
    return become(block, fused, layers)


def fuse_stem(model: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """Fuse the first batch norm of a ResNet with its ReLU; return 1, or 0 for other models."""
    return fuse_pair(model, "bn1", "relu", may_change) if type(model) is resnet.ResNet else 0


RELU, BLOCKS = [fuse_stem], [fuse_block]
