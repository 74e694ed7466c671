"""`fuse_batchnorm(model)`: BatchNorm → ReLU and BatchNorm → add → ReLU of a model become one operator each, in place.

What it finds: a BatchNorm2d followed by a ReLU in a Sequential, and what `fused_torchvision` and `fused_timm` know of these
libraries' layers and residual blocks. A fused layer keeps its parameters, buffers and their names, and its ReLU does nothing
any more. It uses the operator while training on channels_last batches; otherwise (evaluation, other layouts, 16-bit
parameters) it is the same torch calls as before. Left alone: other layers (SyncBatchNorm, other activations), layers with
hooks, and layers used in several places. Whoever puts another layer in a fused one's place later (SyncBatchNorm) gets the
model as it was written. To be called before the model is compiled or wrapped.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery_lib.kernels import batch_norm_reference
from gallery_lib.kernels.batch_norm import batch_norm_relu

_LIBRARIES = {
    "torchvision.models.resnet": "gallery_lib.compiler.fusion.torchvision_models",
    "timm.layers": "gallery_lib.compiler.fusion.timm_models",
}
"""What a model must have been made of (so it is imported), and who knows the patterns there."""


@dataclass(frozen=True)
class Fusion:
    """How many patterns became one operator, and how many batch norms of the model did not."""

    relu: int
    add_relu: int
    left: int

    def __str__(self) -> str:
        return f"{self.relu} BatchNorm + ReLU and {self.add_relu} BatchNorm + add + ReLU fused, {self.left} batch norms left as they are"


Rule = Callable[[Any, Callable[[nn.Module], bool]], int]
"""(container, may this batch norm be changed?) → how many of its children now are a fused layer; 0 when nothing was changed."""


def takes_operator(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> bool:
    """Whether a layer's forward pass is the operator's: it trains, in channels_last, on what the kernels take."""
    like = residual is None or (
        residual.shape == x.shape
        and residual.dtype == x.dtype
        and residual.is_contiguous(memory_format=torch.channels_last)
    )
    return (
        layer.training
        and x.dim() == 4
        and batch_norm_reference.rows(x) > 1  # torch refuses to train on less, in words of its own
        and x.is_contiguous(memory_format=torch.channels_last)
        and like
        and all(
            each is None or each.dtype is batch_norm_reference.arithmetic(x)
            for each in (layer.weight, layer.bias, layer.running_mean)
        )
    )


def train_with_operator(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(layer(x) + residual) by the operator; updates the layer's running statistics as BatchNorm2d does."""
    tracked = layer.track_running_stats
    return batch_norm_relu(
        x,
        layer.running_mean if tracked else None,
        layer.running_var if tracked else None,
        layer.weight,
        layer.bias,
        residual=residual,
        batches=layer.num_batches_tracked if tracked else None,
        momentum=layer.momentum,
        eps=layer.eps,
    )


class BatchNormReLU2d(nn.BatchNorm2d):
    """relu(batch_norm(x) + residual)."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """[N, C, H, W], as `input` and `residual` are."""
        if takes_operator(self, input, residual):
            return train_with_operator(self, input, residual)
        result = super().forward(input)
        if residual is not None:
            result += residual
        return functional.relu_(result)


class AppliedReLU(nn.ReLU):
    """A ReLU that does nothing while a fused layer stands before it, which has applied it."""

    def __init__(self, container: nn.Module, layer: str, inplace: bool) -> None:
        """The fused layer is child `layer` of `container`."""
        super().__init__(inplace)
        self._before = (container, layer)  # in a tuple: not a child of this module

    def forward(self, input: Tensor) -> Tensor:
        """`input`, through ReLU."""
        container, layer = self._before
        return (
            input
            if isinstance(container._modules[layer], BatchNormReLU2d)
            else super().forward(input)
        )


def normalised(layer: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(layer(x) + residual) in a fused block, also when another layer has been put in the fused one's place."""
    if isinstance(layer, BatchNormReLU2d):
        return layer(x, residual)
    result = layer(x)
    if residual is not None:
        result += residual
    return functional.relu_(result)


def has_hooks(module: nn.Module) -> bool:
    """Whether someone looks at what goes in or out of it."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


def is_plain_relu(module: nn.Module) -> TypeGuard[nn.ReLU]:
    """An nn.ReLU that nobody watches."""
    return type(module) is nn.ReLU and not has_hooks(module)


def fuse_pair(
    container: nn.Module, norm: str, activation: str, may_change: Callable[[nn.Module], bool]
) -> int:
    """A batch norm and the ReLU that directly follows it, by their names in `container`: 1, or 0 when they stay as they are."""
    layer, relu = container._modules[norm], container._modules[activation]
    if layer is None or relu is None or not may_change(layer) or not is_plain_relu(relu):
        return 0
    layer.__class__ = BatchNormReLU2d
    setattr(container, activation, AppliedReLU(container, norm, relu.inplace))
    return 1


def become(block: nn.Module, fused: type, layers: Sequence[nn.Module]) -> int:
    """Make `block` one of the class `fused`, whose batch norms `layers` are fused ones; their number."""
    for layer in layers:
        layer.__class__ = BatchNormReLU2d
    block.__class__ = fused
    return len(layers)


def fuse_sequential(container: nn.Module, may_change: Callable[[nn.Module], bool]) -> int:
    """BatchNorm2d, ReLU, one after the other in a Sequential."""
    if type(container).forward is not nn.Sequential.forward:
        return 0
    return sum(
        fuse_pair(container, name, following, may_change)
        for name, following in itertools.pairwise(list(container._modules))
    )


def _rules() -> tuple[list[Rule], list[Rule]]:
    """Those that find BatchNorm → ReLU, and those for residual blocks: all layers of a block, the last one with the addition."""
    relu: list[Rule] = [fuse_sequential]
    blocks: list[Rule] = []
    for library, patterns in _LIBRARIES.items():
        if library in sys.modules:
            module = importlib.import_module(patterns)
            relu += module.RELU
            blocks += module.BLOCKS
    return relu, blocks


def fuse_batchnorm(model: nn.Module) -> Fusion:
    """Fuse every pattern found in `model`, in place. A second call finds nothing more."""
    places = Counter(
        id(child)
        for parent in model.modules()
        for child in parent._modules.values()
        if child is not None
    )

    def may_change(layer: nn.Module) -> bool:
        return (
            type(layer) is nn.BatchNorm2d
            and places[id(layer)] == 1
            and not has_hooks(layer)
            and "forward" not in vars(layer)
        )

    found_relu = found_add = 0
    relu, blocks = _rules()
    for module in list(model.modules()):
        for rule in blocks:
            layers = rule(module, may_change)
            found_relu += max(0, layers - 1)
            found_add += layers > 0
        found_relu += sum(rule(module, may_change) for rule in relu)
    norms = sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return Fusion(found_relu, found_add, norms - found_relu - found_add)
