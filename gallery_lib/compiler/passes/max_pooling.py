"""Max pooling on the CPU by our operator, which the compiler leaves whole.

torch.compile writes the gradient of max pooling as a scatter: 64-bit indices, an fp32 image of
zeros that is contiguous, and a transposed copy wherever a kernel in channels_last reads it. This
graph pass works on the graph as the model was written. It puts an operator in the place of
`max_pool2d` for images in channels_last, whose gradient is one pass over the image.

Left alone are other layouts, dilation, windows of more than 256 elements, and results with indices.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from gallery_lib.compiler.passes.graph_pass import (
    Pass,
    as_traced,
    behind_convolutions,
    example,
    put_in_place_of,
    two_sides,
)
from gallery_lib.kernels import max_pool

_NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_DEFAULTS = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}


def _arguments(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the operator's arguments, or None where torch's function stays."""
    given = {**_DEFAULTS, **dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    image = given["input"]
    value = example(image)
    if (
        given.get("return_indices")
        or value is None
        or value.dim() != 4
        or value.device.type != "cpu"
        or value.dtype not in (torch.float32, torch.bfloat16)
    ):
        return None
    kernel, padding, dilation = (
        two_sides(given[name]) for name in ("kernel_size", "padding", "dilation")
    )
    stride = two_sides(given["stride"]) if given["stride"] else kernel
    if not all(isinstance(size, int) for size in (*kernel, *stride, *padding)):
        return None  # not known before it runs
    if dilation != [1, 1] or kernel[0] * kernel[1] > max_pool.LARGEST_WINDOW:
        return None
    return image, kernel, stride, padding, given["ceil_mode"]


def rewrite(graph: fx.Graph) -> None:
    """Put `gallery::max_pool` in the place of `max_pool2d`."""
    behind = behind_convolutions(graph)
    for target in (functional.max_pool2d, torch.max_pool2d):
        for node in graph.find_nodes(op="call_function", target=target):
            if node not in behind or (arguments := _arguments(node)) is None:
                continue
            with graph.inserting_before(node):
                both = graph.call_function(torch.ops.gallery.max_pool.default, arguments)
                pooled = graph.call_function(operator.getitem, (both, 0))
                put_in_place_of(node, as_traced(graph, pooled, node))


def _reason() -> str | None:
    return None if max_pool.available() else "its C++ could not be built here"


PASS = Pass(
    "max_pooling",
    "pre_grad_custom_pass",
    rewrite,
    needs_channels_last=True,
    reason_not_applied=_reason,
)
