"""Fuse BatchNorm → ReLU and BatchNorm → add → ReLU into one operator each: `fuse_batchnorm(model)`.

The model is changed in place. The patterns are a BatchNorm2d followed by a ReLU in a Sequential,
and what `torchvision_models` and `timm_models` know of these libraries' layers and residual blocks.
A fused layer keeps its parameters, buffers and their names. Its ReLU becomes a no-op. The layer
uses the operator while training on channels_last batches. Otherwise (evaluation, other layouts,
16-bit parameters) it makes the same torch calls as before.

Left alone are other layers (SyncBatchNorm, other activations), layers with hooks, and layers used
in several places. Replacing a fused layer later (by SyncBatchNorm) gives the model as it was
written. Call `fuse_batchnorm` before the model is compiled or wrapped.
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
"""Module that is imported when a model comes from a library, and the module of ours that knows the
patterns there."""


@dataclass(frozen=True)
class Fusion:
    """Number of patterns that became one operator, and of the batch norms that did not."""

    relu: int
    add_relu: int
    left: int

    def __str__(self) -> str:
        """Return the numbers in one line, for the run's results."""
        return (
            f"{self.relu} BatchNorm + ReLU and {self.add_relu} BatchNorm + add + ReLU fused, "
            f"{self.left} batch norms left as they are"
        )


Rule = Callable[[Any, Callable[[nn.Module], bool]], int]
"""(container, may this batch norm be changed?) → how many of its children now are a fused layer; 0
when nothing was changed."""


def takes_operator(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> bool:
    """Return whether a layer's forward pass is the operator's.

    That is so in training, in channels_last, on what the kernels take.
    """
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
            tensor is None or tensor.dtype is batch_norm_reference.arithmetic(x)
            for tensor in (layer.weight, layer.bias, layer.running_mean)
        )
    )


def train_with_operator(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Return relu(layer(x) + residual) by the operator.

    The layer's running statistics are updated as BatchNorm2d updates them.
    """
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
    """BatchNorm2d that returns relu(batch_norm(x) + residual)."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return a tensor of the shape [N, C, H, W] that `input` and `residual` have."""
        if takes_operator(self, input, residual):
            return train_with_operator(self, input, residual)
        result = super().forward(input)
        if residual is not None:
            result += residual
        return functional.relu_(result)


class AppliedReLU(nn.ReLU):
    """ReLU that does nothing while the fused layer in front of it has applied ReLU already."""

    def __init__(self, container: nn.Module, layer: str, inplace: bool) -> None:
        """Stand behind the fused layer that is child `layer` of `container`."""
        super().__init__(inplace)
        self._before = (container, layer)  # in a tuple, so that it is no child of this module

    def forward(self, input: Tensor) -> Tensor:
        """Return `input`, through ReLU unless a fused layer has applied it."""
        container, layer = self._before
        return (
            input
            if isinstance(container._modules[layer], BatchNormReLU2d)
            else super().forward(input)
        )


def normalised(layer: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Return relu(layer(x) + residual) in a fused block.

    This also holds when another layer has been put in the fused one's place.
    """
    if isinstance(layer, BatchNormReLU2d):
        return layer(x, residual)
    result = layer(x)
    if residual is not None:
        result += residual
    return functional.relu_(result)


def has_hooks(module: nn.Module) -> bool:
    """Return whether the module has hooks on its forward or backward pass."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


def is_plain_relu(module: nn.Module) -> TypeGuard[nn.ReLU]:
    """Return whether the module is an nn.ReLU without hooks."""
    return type(module) is nn.ReLU and not has_hooks(module)


def fuse_pair(
    container: nn.Module, norm: str, activation: str, may_change: Callable[[nn.Module], bool]
) -> int:
    """Fuse a batch norm and the ReLU that directly follows it, by their names in `container`.

    Returns 1, or 0 when they stay as they are.
    """
    layer, relu = container._modules[norm], container._modules[activation]
    if layer is None or relu is None or not may_change(layer) or not is_plain_relu(relu):
        return 0
    layer.__class__ = BatchNormReLU2d
    setattr(container, activation, AppliedReLU(container, norm, relu.inplace))
    return 1


def become(block: nn.Module, fused: type, layers: Sequence[nn.Module]) -> int:
    """Turn `block` into the class `fused`, and its batch norms `layers` into fused ones.

    Returns the number of `layers`.
    """
    for layer in layers:
        layer.__class__ = BatchNormReLU2d
    block.__class__ = fused
    return len(layers)


def is_fused(model: nn.Module) -> bool:
    """Return whether a layer of the model may add a residual by the operator."""
    return any(isinstance(module, BatchNormReLU2d) for module in model.modules())


def fuse_sequential(container: nn.Module, may_change: Callable[[nn.Module], bool]) -> int:
    """Fuse each BatchNorm2d with the ReLU after it in a Sequential; return the number of pairs."""
    if type(container).forward is not nn.Sequential.forward:
        return 0
    return sum(
        fuse_pair(container, name, following, may_change)
        for name, following in itertools.pairwise(list(container._modules))
    )


def _rules() -> tuple[list[Rule], list[Rule]]:
    """Return the rules that find BatchNorm → ReLU, and those for residual blocks.

    A rule for blocks fuses all layers of a block, the last one with the addition.
    """
    relu: list[Rule] = [fuse_sequential]
    blocks: list[Rule] = []
    for library, patterns in _LIBRARIES.items():
        if library in sys.modules:
            module = importlib.import_module(patterns)
            relu += module.RELU
            blocks += module.BLOCKS
    return relu, blocks


def fuse_batchnorm(model: nn.Module) -> Fusion:
    """Fuse every pattern found in `model`, in place.

    A second call finds nothing more.

    Example:
        >>> from torch import nn
        >>> from gallery_lib.compiler.fusion.batch_norm import fuse_batchnorm
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> fuse_batchnorm(model)
        Fusion(relu=1, add_relu=0, left=0)
    """
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
