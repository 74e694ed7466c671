"""3 × 3 convolutions in fp32 on the CPU by fewer products, in place of oneDNN's.

oneDNN's convolutions for x86 multiply each pixel by each element of a kernel. Winograd's form takes
16 products where they take 36 (`kernels/winograd.py`), for outputs and both gradients. Rounding is
of the same size, not the same: an infinite pixel makes NaN of all results in tiles that read it.

Left alone are other kernels, strides and padding, groups, few channels, and images of so few pixels
that the kernels' transformation takes as long as their products. bfloat16 has faster units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from gallery_lib.compiler.passes.graph_pass import (
    Pass,
    arguments_of,
    take_gradients,
    wanted_gradients,
    write,
)
from gallery_lib.kernels import winograd
from gallery_lib.system import hardware

FEWEST_TILES, FEWEST_CHANNELS = 256, 32
"""Fewest tiles (2 × 2 results of one image) and channels of a convolution that gains."""

_aten = torch.ops.aten


def reason_not_applied() -> str | None:
    """Return why convolutions stay as they are on this processor, or None."""
    if not {"avx2", "avx512f"} & set(hardware.cpu_flags()):
        return "the processor has neither AVX2 nor AVX-512"
    return None if winograd.available() else "its C++ could not be built here"


def rewrite(graph: fx.Graph) -> None:
    """Write 3 × 3 convolutions in Winograd's form."""
    for node in graph.find_nodes(op="call_function", target=_aten.convolution_backward.default):
        arguments = arguments_of(node)
        if _is_taken(arguments) and (wanted := wanted_gradients(node)) is not None:
            take_gradients(node, wanted, _gradients(node, arguments, wanted))
    for node in graph.find_nodes(op="call_function", target=_aten.convolution.default):
        arguments = arguments_of(node)
        if _is_taken(arguments):
            given = tuple(arguments[name] for name in ("input", "weight", "bias"))
            contiguous = node.meta["val"].is_contiguous()
            node.replace_all_uses_with(write(node, _convolved, *given, False, contiguous))
            graph.erase_node(node)


def _gradients(node: fx.Node, arguments: dict[str, Any], wanted: list[bool]) -> dict[int, fx.Node]:
    """Write the gradients that are wanted, by their place: of image, weight and bias."""
    names = ("grad_output", "input", "weight")
    gradient, image, weight = (arguments[name] for name in names)
    contiguous = wanted[0] and node.meta["val"][0].is_contiguous()
    forms: list[tuple[Any, ...]] = [
        (_convolved, gradient, weight, None, True, contiguous),
        (_gradient_of_weight, gradient, image, weight),
        (_gradient_of_bias, gradient),
    ]
    return {place: write(node, *form) for place, form in enumerate(forms) if wanted[place]}


def _is_taken(arguments: dict[str, Any]) -> bool:
    """Return whether a convolution, or the backward pass of one, is to have this form."""
    image, weight = (arguments[name].meta["val"] for name in ("input", "weight"))
    sizes = (*image.shape, *weight.shape)
    if image.dim() != 4 or not all(isinstance(size, int) for size in sizes):
        return False
    tiles = image.shape[0] * -(-image.shape[2] // 2) * -(-image.shape[3] // 2)
    return (
        list(weight.shape[2:]) == [3, 3]
        and all(list(arguments[name]) == [1, 1] for name in ("stride", "padding", "dilation"))
        and not arguments["transposed"]
        and arguments["groups"] == 1
        and image.dtype is weight.dtype is torch.float32
        and image.device.type == "cpu"
        and tiles >= FEWEST_TILES
        and min(image.shape[2:]) > 1
        and all(c >= FEWEST_CHANNELS and c % winograd.CHANNELS == 0 for c in weight.shape[:2])
    )


def _convolved(
    image: Tensor, weight: Tensor, bias: Tensor | None, turned: bool, contiguous: bool
) -> Tensor:
    """Return the result, in channels_last unless it is to be contiguous."""
    image = image.contiguous(memory_format=torch.channels_last)
    result: Tensor = torch.ops.gallery.winograd(image, weight, turned)
    if bias is not None:
        result = result + bias.view(-1, 1, 1)
    # Later nodes were traced so. The pass `channels_last` removes the copy where nothing needs it.
    return result.contiguous() if contiguous else result


def _gradient_of_weight(gradient: Tensor, image: Tensor, weight: Tensor) -> Tensor:
    given = [each.contiguous(memory_format=torch.channels_last) for each in (gradient, image)]
    result: Tensor = torch.ops.gallery.winograd_gradient(*given, weight)
    return result


def _gradient_of_bias(gradient: Tensor) -> Tensor:
    return gradient.sum((0, 2, 3))


PASS = Pass(
    "winograd",
    "joint_custom_pre_pass",
    rewrite,
    needs_channels_last=True,
    reason_not_applied=reason_not_applied,
)
