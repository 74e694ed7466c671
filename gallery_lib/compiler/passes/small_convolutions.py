"""Convolutions over few positions on the CPU, as matrix products in place of oneDNN's convolutions.

Deep in a network, or where images are small, a convolution has many channels and few positions: 512
channels on 16 images of 2 × 2 are 64 rows. oneDNN's loops over positions are short there. Above
all, its gradients of weights come in a blocked layout and are copied into the weights' own. It also
copies the weights into a blocked layout twice in each step.

A matrix product does without these copies (Chellapilla et al., "High Performance Convolutional
Neural Networks for Document Processing", 2006). Its left side is im2col, the pixels under the
kernel side by side. They stand in the order in which the weights lie, so that weights and their
gradients are used as they are: [positions, channels × kernel] for contiguous weights, [positions,
kernel × channels] for those in channels_last. Rounding is the same: sums in fp32, rounded once.

Each of the three passes (outputs, gradients of inputs, gradients of weights) is rewritten up to a
number of positions of its own. This is for bfloat16 only: in fp32 oneDNN's convolutions are faster
than its products, or torch's. Left alone are groups, dilation, sizes that change, and weights in
another order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from gallery_lib.compiler.passes.graph_pass import (
    Pass,
    arguments_of,
    take_gradients,
    wanted_gradients,
    write,
)
from gallery_lib.system import hardware

MOST_POSITIONS = {"forward": (160, 256), "inputs": (160, 256), "weights": (512, 1024)}
"""Positions up to which products are used for outputs, gradients of inputs and gradients of
weights. The first number is for kernels of several pixels, the second for kernels of one."""

_aten = torch.ops.aten
_FORWARD, _BACKWARD = _aten.convolution.default, _aten.convolution_backward.default


def reason_not_applied() -> str | None:
    """Return why convolutions stay as they are on this processor, or None."""
    in_bf16 = "avx512_bf16" in hardware.cpu_flags()
    return None if in_bf16 else "the processor has no bfloat16 units of AVX-512"


def rewrite(graph: fx.Graph) -> None:
    """Write small convolutions as products."""
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        _rewrite_backward(graph, node)
    for node in graph.find_nodes(op="call_function", target=_FORWARD):
        arguments = arguments_of(node)
        if _is_small(arguments, node.meta["val"], "forward"):
            given = [arguments[name] for name in ("input", "weight", "bias", "stride", "padding")]
            result = write(node, _convolved, *given, node.meta["val"].is_contiguous())
            node.replace_all_uses_with(result)
            graph.erase_node(node)


def _is_small(arguments: dict[str, Any], result: Tensor, which: str) -> bool:
    """Return whether a pass of a convolution, or of one with these outputs, is to be a product."""
    image, weight = (arguments[name].meta["val"] for name in ("input", "weight"))
    tensors = (image, weight, result)
    if (
        image.dim() != 4
        or arguments["transposed"]
        or arguments["groups"] != 1
        or list(arguments["dilation"]) != [1, 1]
        or {tensor.dtype for tensor in tensors} != {torch.bfloat16}
        or image.device.type != "cpu"
        or not all(isinstance(size, int) for tensor in tensors for size in tensor.shape)
        or not (weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last))
    ):
        return False
    positions = result.shape[0] * result.shape[2] * result.shape[3]  # rows of the product
    return positions <= MOST_POSITIONS[which][weight.shape[2:] == (1, 1)]


def _rewrite_backward(graph: fx.Graph, node: fx.Node) -> None:
    arguments = arguments_of(node)
    if (wanted := wanted_gradients(node)) is None:
        return
    names = ("grad_output", "input", "weight", "stride", "padding")
    gradient, image, weight, stride, padding = (arguments[name] for name in names)
    outputs, kernel = gradient.meta["val"], weight.meta["val"].shape[2:]
    # With a turned kernel the inputs' gradient is such a convolution, of as many positions.
    turns = list(stride) == [1, 1] and all(p < k for p, k in zip(padding, kernel, strict=True))
    gradients: dict[int, fx.Node] = {}
    if wanted[0] and turns and _is_small(arguments, outputs, "inputs"):
        contiguous = node.meta["val"][0].is_contiguous()
        gradients[0] = write(node, _gradient_of_inputs, gradient, weight, padding, contiguous)
    if wanted[1] and _is_small(arguments, outputs, "weights"):
        gradients[1] = write(node, _gradient_of_weights, gradient, image, weight, stride, padding)
    take_gradients(node, wanted, gradients)


# --------------------------------------------------------------------------------------------------
# The products, in plain torch. Images are [samples, channels, height, width].


def _convolved(
    image: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, contiguous: bool
) -> Tensor:
    """Return the convolution's result, in channels_last unless it is to be contiguous."""
    pixels, size = _pixels(image, weight, stride, padding)
    in_order = weight if _channels_first(weight) else weight.permute(0, 2, 3, 1)
    weights = in_order.reshape(weight.shape[0], -1).t()
    rows = pixels.mm(weights) if bias is None else torch.addmm(bias, pixels, weights)
    result = rows.view(*size, -1).permute(0, 3, 1, 2)
    # Later nodes were traced so. The pass `channels_last` removes the copy where nothing needs it.
    return result.contiguous() if contiguous else result


def _gradient_of_inputs(gradient: Tensor, weight: Tensor, padding: Any, contiguous: bool) -> Tensor:
    """Return the gradient of the outputs, convolved with the kernel turned by half a turn."""
    kernel, turned = weight.shape[2:], weight.transpose(0, 1)
    if kernel != (1, 1):
        turned = turned.flip(2, 3).contiguous()
    around = [size - 1 - beside for size, beside in zip(kernel, padding, strict=True)]
    return _convolved(gradient, turned, None, (1, 1), around, contiguous)


def _gradient_of_weights(
    gradient: Tensor, image: Tensor, weight: Tensor, stride: Any, padding: Any
) -> Tensor:
    """Return the gradient of the weights, which lies as the weights do."""
    pixels, _ = _pixels(image, weight, stride, padding)
    rows = gradient.permute(0, 2, 3, 1).reshape(-1, weight.shape[0]).t().mm(pixels)
    if _channels_first(weight):
        return rows.view(weight.shape)
    return rows.view(weight.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def _channels_first(weight: Tensor) -> bool:
    """Return whether a row of the weights, an output's, is [channels × kernel] in memory."""
    return weight.is_contiguous() or weight.shape[2:] == (1, 1)


def _pixels(
    image: Tensor, weight: Tensor, stride: Any, padding: Any
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the pixels under the kernel at each position (im2col), and (samples, height, width).

    They are in the order of a row of the weights: [positions, channels × kernel], or [positions,
    kernel × channels].
    """
    last, kernel = image.permute(0, 2, 3, 1), weight.shape[2:]
    if any(padding):
        rows, columns = padding
        last = functional.pad(last, (0, 0, columns, columns, rows, rows))

    def under(begin: int, side: int) -> slice:
        """Return the rows or columns under one row or column of the kernel."""
        return slice(begin, last.shape[1 + side] - kernel[side] + begin + 1, stride[side])

    pieces = [
        last[:, under(top, 0), under(left, 1)]
        for top in range(kernel[0])
        for left in range(kernel[1])
    ]
    size = tuple(pieces[0].shape[:3])
    if len(pieces) == 1:
        return pieces[0].reshape(-1, image.shape[1]), size
    together = torch.stack(pieces, 4) if _channels_first(weight) else torch.cat(pieces, 3)
    return together.reshape(-1, image.shape[1] * len(pieces)), size


PASS = Pass(
    "small_convolutions",
    "joint_custom_pre_pass",
    rewrite,
    needs_channels_last=True,
    reason_not_applied=reason_not_applied,
)
