"""Batch norm and the ReLU behind it over large images on the CPU, in C++.

In channels_last the channels of a position lie side by side. For the sums of a batch norm the
compiler goes over all positions with the first 16 or 32 channels, then again with the next, in
strides through memory. Where the images are larger than the caches, that is slow. Our operators go
over memory in order. This graph pass works on the graph as the model was written. It puts them in
the place of `batch_norm` and `relu`.

Left alone are small images, whose sums the compiler takes from the caches, images in fp32, where
nothing was gained, a batch norm whose result something else reads (a residual's addition, where
nothing was gained either), evaluation, other layouts, sizes that change, and parameters that are
not in fp32.
"""

from __future__ import annotations

import math
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
    named_arguments,
    put_in_place_of,
)
from gallery_lib.kernels import batch_norm
from gallery_lib.system import hardware

SMALLEST_BYTES = 1 << 20
"""Bytes of images [N, C, H, W] from which on our operators are used; below, nothing was gained."""

_RELUS = (functional.relu, torch.relu, torch.relu_, "relu", "relu_")
_OURS = torch.ops.gallery


def reason_not_applied() -> str | None:
    """Return why batch norms are left to the compiler on this processor, or None."""
    return None if "avx512f" in hardware.cpu_flags() else "the processor has no AVX-512"


def rewrite(graph: fx.Graph) -> None:
    """Put `gallery::batch_norm_relu` in the place of torch's for large images in bfloat16."""
    inside = behind_convolutions(graph)
    for node in graph.find_nodes(op="call_function", target=functional.batch_norm):
        given = named_arguments(node)
        relu = next(iter(node.users)) if len(node.users) == 1 else None
        if node not in inside or relu is None or relu.target not in _RELUS or not _suits(given):
            continue
        if not batch_norm.available():  # asked late, since the first time builds C++
            return
        result = _write(graph, node, given)
        with graph.inserting_before(node):
            result = as_traced(graph, result, relu)
        put_in_place_of(relu, result)
        graph.erase_node(node)


def _suits(given: dict[str, Any]) -> bool:
    """Return whether our operators take a call of `batch_norm` with these arguments."""
    images = example(given["input"])
    channels = [given[name] for name in ("running_mean", "running_var", "weight", "bias")]
    return (
        images is not None
        and images.dim() == 4
        and all(isinstance(size, int) for size in images.shape)
        and images.device.type in PASS.devices
        and images.dtype is torch.bfloat16
        and math.prod(images.shape) * images.itemsize >= SMALLEST_BYTES
        and given["training"] is True
        and isinstance(given["momentum"], float)
        and isinstance(given["eps"], float)
        and (channels[0] is None) == (channels[1] is None)
        and all(
            channel is None or getattr(example(channel), "dtype", None) is torch.float32
            for channel in channels
        )
    )


def _write(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> fx.Node:
    """Write the calls of our operators where `node` stands; return the node of their result."""
    image, running = given["input"], (given["running_mean"], given["running_var"])
    with graph.inserting_before(node):
        statistics = graph.call_function(
            _OURS.batch_norm_statistics_.default,
            (graph.call_method("detach", (image,)), *running, given["momentum"], given["eps"]),
        )
        values = [graph.call_function(operator.getitem, (statistics, place)) for place in (0, 1)]
        return graph.call_function(
            _OURS.batch_norm_relu.default, (image, *values, given["weight"], given["bias"])
        )


PASS = Pass(
    "large_batch_norms",
    "pre_grad_custom_pass",
    rewrite,
    needs_channels_last=True,
    reason_not_applied=reason_not_applied,
)
