"""Bilinear and bicubic upsampling on the CPU, by torch's own operators left whole by the compiler.

torch.compile writes `interpolate` as weighted sums of pixels that are looked up one by one. The
gradient of a look-up is a scatter: it adds to the place of the pixel atomically, without vector
instructions. torch's operator for the gradient goes over memory in order. This graph pass works on
the graph as the model was written. It puts an operator in the place of `interpolate` that calls
torch's, forward and backward, and that the compiler leaves whole.

Left alone are anti-aliasing, `recompute_scale_factor`, other modes (what the compiler makes of
`nearest` is as good), and other devices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from gallery_lib.compiler.passes.graph_pass import (
    Pass,
    example,
    named_arguments,
    replace,
    two_sides,
)
from gallery_lib.kernels.runtime.operators import Autograd, register

_aten = torch.ops.aten
_FORWARD = {"bilinear": _aten.upsample_bilinear2d.vec, "bicubic": _aten.upsample_bicubic2d.vec}
_BACKWARD = {
    "bilinear": _aten.upsample_bilinear2d_backward.default,
    "bicubic": _aten.upsample_bicubic2d_backward.default,
}


def _layout(like: Tensor) -> torch.memory_format:
    return torch._prims_common.suggest_memory_format(like)


def _gradients_layout(mode: str, gradient: Tensor) -> torch.memory_format:
    """Return how torch's operator lays out an image's gradient; the bicubic one is contiguous."""
    return torch.contiguous_format if mode == "bicubic" else _layout(gradient)


def _enlarged(image: Tensor, mode: str, size: Any, scales: Any, align_corners: bool) -> Tensor:
    """Return an image [N, C, H, W] enlarged to `size`, or by `scales`, as `interpolate` does."""
    result = _FORWARD[mode](image, size, align_corners, scales)
    return result.contiguous(memory_format=_layout(image))


def _fake(image: Tensor, mode: str, size: Any, scales: Any, align_corners: bool) -> Tensor:
    lengths = zip(image.shape[2:], scales or (), strict=size is None)
    size = size or [torch.sym_int(length * scale) for length, scale in lengths]
    return image.new_empty([*image.shape[:2], *size]).contiguous(memory_format=_layout(image))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    image, mode, _, *rest = inputs
    ctx.options = (mode, image.shape, *rest)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.gallery.upsample_backward(gradient, *ctx.options), None, None, None, None


def _gradient(gradient: Tensor, mode: str, shape: Any, scales: Any, align_corners: bool) -> Tensor:
    """Return the gradient of an image of `shape`, of that of the enlarged image."""
    both = scales or (None, None)
    result = _BACKWARD[mode](gradient, gradient.shape[2:], shape, align_corners, *both)
    return result.contiguous(memory_format=_gradients_layout(mode, gradient))


register(
    "upsample",
    "(Tensor image, str mode, SymInt[]? size, float[]? scales, bool align_corners) -> Tensor",
    reference=_enlarged,
    fake=_fake,
    autograd=Autograd(_keep, _backward),
)
register(
    "upsample_backward",
    "(Tensor gradient, str mode, SymInt[] shape, float[]? scales, bool align_corners) -> Tensor",
    reference=_gradient,
    fake=lambda gradient, mode, shape, *_: gradient.new_empty(shape).contiguous(
        memory_format=_gradients_layout(mode, gradient)
    ),
)


def rewrite(graph: fx.Graph) -> None:
    """Put torch's upsampling in the place of `interpolate`."""
    for node in graph.find_nodes(op="call_function", target=functional.interpolate):
        if (arguments := _arguments(node)) is not None:
            replace(node, torch.ops.gallery.upsample.default, *arguments)


def _arguments(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the operator's arguments, or None where torch's function stays."""
    given = named_arguments(node)
    image, mode, size, scales = (given[name] for name in ("input", "mode", "size", "scale_factor"))
    value, enlarged = example(image), example(node)
    if (
        mode not in _FORWARD
        or given["antialias"]
        or given["recompute_scale_factor"]
        or value is None
        or enlarged is None
        or value.dim() != 4
        or value.device.type != "cpu"
        or not value.is_floating_point()
        or enlarged.dtype != value.dtype
    ):
        return None
    if isinstance(size, fx.Node) or any(isinstance(scale, fx.Node) for scale in two_sides(scales)):
        return None  # not known before it runs
    sizes = None if size is None else two_sides(size)
    factors = None if scales is None else [float(scale) for scale in two_sides(scales)]
    return image, mode, sizes, factors, bool(given["align_corners"])


PASS = Pass("whole_upsampling", "pre_grad_custom_pass", rewrite)
