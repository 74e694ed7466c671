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

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from gallery_lib.compiler.passes.graph_pass import Pass, arguments_of, write
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
        _rewrite_forward(graph, node)


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a convolution that can be written as a product."""

    samples: int
    inputs: int  # channels
    outputs: int
    channels_first: bool  # in the memory of a kernel of the weights
    image: tuple[int, int]  # height, width
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def keeps_size(self) -> bool:
        """Return whether the inputs' gradient is such a convolution, of a turned kernel.

        It is where the kernel moves by one and the padding is smaller than the kernel.
        """
        return self.stride == (1, 1) and all(
            padding < kernel for padding, kernel in zip(self.padding, self.kernel, strict=True)
        )

    def small(self, which: str) -> bool:
        """Return whether the pass `which` is to be a product."""
        positions = self.samples * self.result[0] * self.result[1]  # rows of the product
        return positions <= MOST_POSITIONS[which][self.kernel == (1, 1)]


def _sizes(arguments: dict[str, Any], result: Tensor) -> _Sizes | None:
    """Return the sizes of a convolution, or None for one that is left alone."""
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
    ):
        return None
    if not (weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)):
        return None
    outputs, inputs = weight.shape[:2]
    shapes = (tensor.shape[2:] for tensor in (image, result, weight))
    pairs = (*shapes, arguments["stride"], arguments["padding"])
    sides = [(int(height), int(width)) for height, width in pairs]
    return _Sizes(image.shape[0], inputs, outputs, weight.is_contiguous(), *sides)


def _rewrite_forward(graph: fx.Graph, node: fx.Node) -> None:
    arguments = arguments_of(node)
    sizes = _sizes(arguments, node.meta["val"])
    if sizes is None or not sizes.small("forward"):
        return
    contiguous = node.meta["val"].is_contiguous()
    given = (arguments[name] for name in ("input", "weight", "bias"))
    result = write(node, _convolved, *given, sizes, contiguous)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _rewrite_backward(graph: fx.Graph, node: fx.Node) -> None:
    arguments = arguments_of(node)
    sizes = _sizes(arguments, arguments["grad_output"].meta["val"])
    if sizes is None or any(user.target is not operator.getitem for user in node.users):
        return
    wanted = list(arguments["output_mask"])
    for user in [user for user in node.users if not wanted[user.args[1]]]:  # type: ignore[index]
        if user.users:
            return
        graph.erase_node(user)
    image, weight, gradient = (arguments[name] for name in ("input", "weight", "grad_output"))
    gradients: dict[Any, fx.Node] = {}
    if wanted[0] and sizes.keeps_size and sizes.small("inputs"):
        contiguous = image.meta["val"].is_contiguous()
        gradients[0] = write(node, _gradient_of_inputs, gradient, weight, sizes, contiguous)
    if wanted[1] and sizes.small("weights"):
        gradients[1] = write(node, _gradient_of_weights, gradient, image, sizes)
    if not gradients:
        return
    left = [flag and place not in gradients for place, flag in enumerate(wanted)]
    for user in list(node.users):
        if user.args[1] in gradients:
            user.replace_all_uses_with(gradients[user.args[1]])
            graph.erase_node(user)
    if any(left):
        place = [argument.name for argument in node.target._schema.arguments].index("output_mask")  # type: ignore[union-attr]
        node.update_arg(place, left)
        node.meta["val"] = tuple(
            value if flag else None for value, flag in zip(node.meta["val"], left, strict=True)
        )
    else:
        graph.erase_node(node)


# --------------------------------------------------------------------------------------------------
# The products, in plain torch.


def _convolved(
    image: Tensor, weight: Tensor, bias: Tensor | None, sizes: _Sizes, contiguous: bool
) -> Tensor:
    """Return the convolution's result, in channels_last unless it is to be contiguous."""
    pixels, weights = _pixels(image, sizes), _weight_rows(weight, sizes).t()
    rows = pixels.mm(weights) if bias is None else torch.addmm(bias, pixels, weights)
    return _image(rows, sizes.samples, sizes.result, contiguous)


def _gradient_of_weights(gradient: Tensor, image: Tensor, sizes: _Sizes) -> Tensor:
    """Return the gradient of the weights, which lies as the weights do."""
    rows = _rows(gradient).t().mm(_pixels(image, sizes))
    if sizes.channels_first:
        return rows.view(sizes.outputs, sizes.inputs, *sizes.kernel)
    return _image(rows.view(-1, sizes.inputs), sizes.outputs, sizes.kernel)


def _gradient_of_inputs(
    gradient: Tensor, weight: Tensor, sizes: _Sizes, contiguous: bool
) -> Tensor:
    """Return the gradient of the inputs.

    It is the gradient of the outputs, convolved with the kernel turned by half a turn.
    """
    if sizes.kernel == (1, 1):
        weights = _weight_rows(weight, sizes)
    else:  # [outputs, height, width, inputs], a copy where it does not lie so
        weights = weight.permute(0, 2, 3, 1).reshape(-1, sizes.inputs)
    padding = (sizes.kernel[0] - 1 - sizes.padding[0], sizes.kernel[1] - 1 - sizes.padding[1])
    turned = replace(sizes, padding=padding, result=sizes.image)
    pixels = _under_kernel(gradient, turned, channels_first=True, turned=True)
    return _image(pixels.mm(weights), sizes.samples, sizes.image, contiguous)


def _rows(tensor: Tensor) -> Tensor:
    """Reshape [samples, channels, height, width] to [samples × height × width, channels]."""
    return tensor.permute(0, 2, 3, 1).reshape(-1, tensor.shape[1])


def _image(rows: Tensor, samples: int, size: tuple[int, int], contiguous: bool = False) -> Tensor:
    """Reshape [samples × height × width, channels] to [samples, channels, height, width]."""
    image = rows.view(samples, *size, rows.shape[1]).permute(0, 3, 1, 2)
    # Later nodes were traced so. The pass `channels_last` removes the copy where nothing needs it.
    return image.contiguous() if contiguous else image


def _pixels(image: Tensor, sizes: _Sizes) -> Tensor:
    """Return the pixels under the kernel, in the order of a row of the weights."""
    return _under_kernel(image, sizes, channels_first=sizes.channels_first)


def _weight_rows(weight: Tensor, sizes: _Sizes) -> Tensor:
    """Return a view [outputs, inputs × height × width], or [outputs, height × width × inputs]."""
    in_order = weight if sizes.channels_first else weight.permute(0, 2, 3, 1)
    return in_order.reshape(sizes.outputs, -1)


def _under_kernel(
    image: Tensor, sizes: _Sizes, *, channels_first: bool, turned: bool = False
) -> Tensor:
    """Return the pixels under the kernel at each position (im2col).

    [samples, channels, height, width] → [positions, kernel height × kernel width × channels], or
    [positions, channels × kernel height × kernel width] with `channels_first`. With `turned` the
    pixels come in the order of a kernel that is turned by half a turn.
    """
    last = image.permute(0, 2, 3, 1)
    if any(sizes.padding):
        rows, columns = sizes.padding
        last = functional.pad(last, (0, 0, columns, columns, rows, rows))

    def under(begin: int, place: int) -> slice:
        """Return the rows or columns under one row or column of the kernel."""
        step = sizes.stride[place]
        return slice(begin, begin + step * (sizes.result[place] - 1) + 1, step)

    order = -1 if turned else 1
    pieces = [
        last[:, under(top, 0), under(left, 1)]
        for top in range(sizes.kernel[0])[::order]
        for left in range(sizes.kernel[1])[::order]
    ]
    if len(pieces) == 1:
        return pieces[0].reshape(-1, image.shape[1])
    together = torch.stack(pieces, 4) if channels_first else torch.cat(pieces, 3)
    return together.reshape(-1, image.shape[1] * len(pieces))


PASS = Pass(
    "small_convolutions",
    "joint_custom_pre_pass",
    rewrite,
    needs_channels_last=True,
    reason_not_applied=lambda: reason_not_applied(),
)
