"""Batch norm and the ReLU behind it over large images on the CPU, by our operators in C++.

In channels_last the channels of a position lie side by side. For the sums of a batch norm the
compiler goes over all positions with the first 16 or 32 channels, then again with the next, in
strides through memory. Where the images are larger than the caches, that is slow. Our operators go
over memory in order. This graph pass works on the graph as the model was written. It puts them in
the place of `batch_norm` and `relu`.

Left alone are small images, whose sums the compiler takes from the caches, images in fp32, where
nothing was gained, a batch norm whose result anything but one ReLU reads (such as the sum of a
residual block), evaluation, other layouts, sizes that change, and parameters that are not in fp32.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.nn import functional

from gallery_lib.kernels import batch_norm, batch_norm_cpp, batch_norm_statistics
from gallery_lib.system import hardware

SMALLEST_BYTES = 4 << 20
"""Bytes of images [N, C, H, W] from which on our operators are used."""

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
_RELUS = {
    "call_function": (functional.relu, torch.relu, torch.relu_),
    "call_method": ("relu", "relu_"),
}
_OURS = torch.ops.gallery


def reason_not_applied() -> str | None:
    """Return why batch norms are left to the compiler on this machine, or None."""
    if "avx512f" not in hardware.cpu_flags():
        return "the processor has no AVX-512"
    return None if batch_norm_cpp.available() else "the C++ could not be built here"


class LargeBatchNorms(CustomGraphPass):
    """Inductor's `pre_grad_custom_pass` that puts `gallery::batch_norm_relu` in place of two calls.

    `uuid` goes into the key of Inductor's cache.
    """

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        for node in graph.find_nodes(op="call_function", target=functional.batch_norm):
            given = {**_DEFAULTS, **dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
            relu = _relu_behind(node)
            if relu is not None and _suits(given):
                with graph.inserting_before(node):
                    result = _written(graph, given)
                result.meta = dict(relu.meta)
                relu.replace_all_uses_with(result)
                graph.erase_node(relu)
                graph.erase_node(node)

    def uuid(self) -> Any:
        """Return a hash of this file and the operators'."""
        return get_hash_for_files(
            (__file__, batch_norm.__file__, batch_norm_statistics.__file__, batch_norm_cpp.__file__)
        )


def _relu_behind(node: fx.Node) -> fx.Node | None:
    """Return the ReLU that alone reads the result of `node`, or None."""
    if len(node.users) != 1:
        return None
    (reader,) = node.users
    return reader if reader.target in _RELUS.get(reader.op, ()) else None


def _suits(given: dict[str, Any]) -> bool:
    """Return whether our operators take a call of `batch_norm` with these arguments, and pay."""
    value = _value(given["input"])
    channels = [given[name] for name in ("running_mean", "running_var", "weight", "bias")]
    return (
        given["training"] is True
        and isinstance(given["momentum"], float)
        and isinstance(given["eps"], float)
        and (given["running_mean"] is None) == (given["running_var"] is None)
        and value is not None
        and _is_large(value)
        and all(channel is None or _is_fp32(_value(channel)) for channel in channels)
    )


def _is_large(value: Tensor) -> bool:
    """Return whether this is an image in channels_last on the CPU for which our operators pay."""
    return (
        value.dim() == 4
        and value.device.type == "cpu"
        and value.dtype is torch.bfloat16
        and all(isinstance(size, int) for size in value.shape)
        and value.is_contiguous(memory_format=torch.channels_last)
        and math.prod(value.shape) * value.itemsize >= SMALLEST_BYTES
    )


def _is_fp32(value: Tensor | None) -> bool:
    return value is not None and value.dtype is torch.float32


def _value(node: Any) -> Tensor | None:
    """Return what is known of a node's tensor, or None."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _written(graph: fx.Graph, given: dict[str, Any]) -> fx.Node:
    """Write the calls of our operators; return the node of their result."""
    image, running = given["input"], (given["running_mean"], given["running_var"])
    statistics = graph.call_function(
        _OURS.batch_norm_statistics_.default,
        (
            graph.call_method("detach", (image,)),
            *running,
            None,  # the batches are counted by a call of their own
            given["momentum"],
            given["eps"],
        ),
    )
    values = [graph.call_function(operator.getitem, (statistics, place)) for place in (0, 1)]
    return graph.call_function(
        _OURS.batch_norm_relu.default, (image, None, *values, given["weight"], given["bias"])
    )
