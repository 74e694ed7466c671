"""Gradients of a residual block's result, added up in the pass of the batch norm that reads them.

The result of a block has two readers, the next block's first convolution and its residual. In
compiled code their gradients would be added up by a kernel of its own, since the compiler does not
look into our batch norm. Its operator takes the two as they are instead. Rounding is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

import gallery_lib.kernels.batch_norm  # noqa: F401  registers the operator

_ADD, _OURS = torch.ops.aten.add.Tensor, torch.ops.gallery


class TwoGradients(CustomGraphPass):
    """Inductor's `joint_custom_pre_pass` that lets our batch norm add up gradients.

    `uuid` goes into the key of Inductor's cache.
    """

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        for node in graph.find_nodes(op="call_function", target=_OURS.batch_norm_relu_sums.default):
            gradient, x, result, *channels = node.args
            if result is None or (parts := _parts(gradient, x)) is None:
                continue
            node.target = _OURS.batch_norm_relu_sums_of_two.default
            node.args = (*parts, x, result, *channels)
            if inputs := node.meta.get("eager_input_vals"):  # strides that Inductor has to keep
                values = (*(part.meta["val"] for part in parts), *inputs[0][1:])
                node.meta["eager_input_vals"] = (values, inputs[1])
            graph.erase_node(gradient)

    def uuid(self) -> Any:
        """Return a hash of this file, so that it changes with it."""
        return get_hash_for_files((__file__,))


def _parts(node: Any, x: Any) -> tuple[fx.Node, fx.Node] | None:
    """Return the two tensors like x that `node` adds up for one reader; None for other nodes."""
    if node.op != "call_function" or node.target is not _ADD:
        return None
    if node.kwargs or len(node.users) != 1:
        return None
    one, other = node.args
    for part in (one, other):
        if not isinstance(part, fx.Node) or not _alike(part.meta["val"], x.meta["val"]):
            return None
    return one, other


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype is other.dtype
