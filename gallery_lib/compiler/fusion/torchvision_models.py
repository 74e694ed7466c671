"""Where torchvision's ResNets have BatchNorm → ReLU and BatchNorm → add → ReLU (see fused_batch_norm)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torchvision.models import resnet

from gallery_lib.compiler.fusion.batch_norm import become, fuse_pair, is_plain_relu, normalised


class FusedBasicBlock(resnet.BasicBlock):
    """Whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """As BasicBlock."""
        out = self.conv2(normalised(self.bn1, self.conv1(x)))
        return normalised(self.bn2, out, x if self.downsample is None else self.downsample(x))


class FusedBottleneck(resnet.Bottleneck):
    """Whose batch norms add the shortcut and apply ReLU themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """As Bottleneck."""
        out = self.conv2(normalised(self.bn1, self.conv1(x)))
        out = self.conv3(normalised(self.bn2, out))
        return normalised(self.bn3, out, x if self.downsample is None else self.downsample(x))


_BLOCKS: dict[type, tuple[type, tuple[str, ...]]] = {
    resnet.BasicBlock: (FusedBasicBlock, ("bn1", "bn2")),
    resnet.Bottleneck: (FusedBottleneck, ("bn1", "bn2", "bn3")),
}


def fuse_block(block: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """A residual block; all of it or nothing."""
    fused, names = _BLOCKS.get(type(block), (None, ()))
    layers = [getattr(block, name) for name in names]
    if fused is None or not is_plain_relu(block.relu) or not all(map(may_change, layers)):
        return 0
    return become(block, fused, layers)


def fuse_stem(model: Any, may_change: Callable[[nn.Module], bool]) -> int:
    """The first batch norm of a ResNet."""
    return fuse_pair(model, "bn1", "relu", may_change) if type(model) is resnet.ResNet else 0


RELU, BLOCKS = [fuse_stem], [fuse_block]
