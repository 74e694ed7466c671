"""Batch norm, the residual and the ReLU behind it over large images on the CPU, in C++.

In channels_last the channels of a position lie side by side. For the sums of a batch norm the
compiler goes over all positions with the first 16 or 32 channels, then again with the next, in
strides through memory. Where the images are larger than the caches, that is slow. Our operators go
over memory in order. This graph pass works on the graph as the model was written. It puts them in
the place of `batch_norm`, `relu` and an addition between the two.

Left alone are small images, whose sums the compiler takes from the caches, images in fp32, where
nothing was gained, a batch norm whose result something else reads, evaluation, other layouts, sizes
that change, and parameters that are not in fp32. A form for measurements takes images of every size
and of every dtype that the operators are written for, on CUDA as well.

The result of a residual block has two readers, the next block's first convolution and its residual.
In compiled code their gradients would be added up by a kernel of its own, since the compiler does
not look into our batch norm. A second pass gives its operator the two. Rounding is the same.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional

from gallery_lib.compiler.passes.graph_pass import (
    Pass,
    as_traced,
    behind_convolutions,
    example,
    put_in_place_of,
)
from gallery_lib.kernels import batch_norm, batch_norm_statistics  # noqa: F401  register operators
from gallery_lib.kernels.runtime import usage
from gallery_lib.kernels.runtime.launch import ELEMENTS
from gallery_lib.system import hardware

SMALLEST_BYTES = 1 << 20
"""Bytes of images [N, C, H, W] from which on our operators are used; below, nothing was gained."""

_DTYPES = {"cpu": (torch.bfloat16, torch.float32), "cuda": tuple(ELEMENTS)}
"""Dtypes of images that the C++ and the kernels are written for."""
_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
_RELUS = (functional.relu, torch.relu, torch.relu_, "relu", "relu_")
_ADDITIONS_INTO_THE_FIRST = (operator.iadd, "add_")
_ADDITIONS = (operator.add, torch.add, "add", *_ADDITIONS_INTO_THE_FIRST)
_OURS = torch.ops.gallery


def reason_not_applied() -> str | None:
    """Return why batch norms are left to the compiler on this processor, or None."""
    return None if "avx512f" in hardware.cpu_flags() else "the processor has no AVX-512"


def reason_not_there(device: torch.device) -> str | None:
    """Return why our operators would be plain torch on `device`, or None.

    The first time this builds their C++.
    """
    if device.type != "cpu":
        return usage.reason_not_launched(device)
    return None if batch_norm_statistics.available() else "their C++ could not be built here"


def rewrite(graph: fx.Graph, *, every: bool = False) -> None:
    """Put `gallery::batch_norm_relu` in the place of torch's.

    It takes large images in bfloat16 on the CPU, or `every` one that the operators take.
    """
    inside = behind_convolutions(graph)
    for node in graph.find_nodes(op="call_function", target=functional.batch_norm):
        if node not in inside:
            continue
        given = {**_DEFAULTS, **dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
        epilogue, value = _epilogue_of(node), example(given["input"])
        if epilogue is None or value is None or not _takes(value, every):
            continue
        if not _suits(given, value, epilogue.residual):
            continue
        if reason_not_there(value.device):  # asked late, since the first time builds C++
            return
        result = _write(graph, node, epilogue, given)
        with graph.inserting_before(result.next):
            result = as_traced(graph, result, epilogue.relu)
        put_in_place_of(epilogue.relu, result)
        for replaced in (epilogue.addition, node):
            if replaced is not None:
                graph.erase_node(replaced)


def rewrite_every(graph: fx.Graph) -> None:
    """Put our operators in the place of torch's for images of every size."""
    rewrite(graph, every=True)


def _takes(images: Tensor, every: bool) -> bool:
    """Return whether batch norms over these images are ours."""
    if images.dim() != 4 or not all(isinstance(size, int) for size in images.shape):
        return False
    if every:
        return images.dtype in _DTYPES.get(images.device.type, ())
    return (
        images.device.type == "cpu"
        and images.dtype is torch.bfloat16
        and math.prod(images.shape) * images.itemsize >= SMALLEST_BYTES
    )


class _Epilogue(NamedTuple):
    """What follows a batch norm: a ReLU, perhaps with the addition of a residual before it."""

    relu: fx.Node
    addition: fx.Node | None = None
    residual: fx.Node | None = None


def _epilogue_of(node: fx.Node) -> _Epilogue | None:
    """Return what alone reads the result of `node`, or None where that is something else."""
    reader = _only_reader(node)
    if reader is None:
        return None
    if reader.target in _RELUS:
        return _Epilogue(reader)
    relu = _only_reader(reader)
    if relu is None or relu.target not in _RELUS or reader.target not in _ADDITIONS:
        return None
    if reader.kwargs or len(reader.args) != 2:
        return None
    first, second = reader.args
    if first is not node and reader.target in _ADDITIONS_INTO_THE_FIRST:
        return None  # the residual is changed, and may be read again
    other = second if first is node else first
    if not isinstance(other, fx.Node) or other is node or _is_read_between(node, reader):
        return None
    return _Epilogue(relu, reader, other)


def _is_read_between(node: fx.Node, addition: fx.Node) -> bool:
    """Return whether anything reads, and so may change, a batch norm's images before the addition.

    Our operator reads them where the addition stands.
    """
    images, one = node.args[0] if node.args else node.kwargs["input"], node.next
    while one is not addition:
        if images in one.all_input_nodes:
            return True
        one = one.next
    return False


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _suits(given: dict[str, Any], value: Tensor, residual: fx.Node | None) -> bool:
    """Return whether our operators take a call of `batch_norm` with these arguments."""
    channels = [given[name] for name in ("running_mean", "running_var", "weight", "bias")]
    return (
        given["training"] is True
        and isinstance(given["momentum"], float)
        and isinstance(given["eps"], float)
        and (given["running_mean"] is None) == (given["running_var"] is None)
        and (residual is None or _alike(example(residual), value))
        and all(
            channel is None or getattr(example(channel), "dtype", None) is torch.float32
            for channel in channels
        )
    )


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and one.shape == other.shape and one.dtype is other.dtype


def _write(graph: fx.Graph, node: fx.Node, epilogue: _Epilogue, given: dict[str, Any]) -> fx.Node:
    """Write the calls of our operators; return the node of their result.

    The statistics are taken where `node` stands, and the residual is read where it was added.
    """
    image = given["input"]
    with graph.inserting_before(node):
        statistics = graph.call_function(
            _OURS.batch_norm_statistics_.default,
            (
                graph.call_method("detach", (image,)),
                given["running_mean"],
                given["running_var"],
                None,  # the batches are counted by a call of their own
                given["momentum"],
                given["eps"],
            ),
        )
        values = [graph.call_function(operator.getitem, (statistics, place)) for place in (0, 1)]
    with graph.inserting_before(epilogue.addition or node):
        return graph.call_function(
            _OURS.batch_norm_relu.default,
            (image, epilogue.residual, *values, given["weight"], given["bias"]),
        )


def add_up_gradients(graph: fx.Graph) -> None:
    """Let our batch norm take the two gradients of its result as they are."""
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


def _parts(node: Any, x: Any) -> tuple[fx.Node, fx.Node] | None:
    """Return the two tensors like x that `node` adds up for one reader; None for other nodes."""
    if node.target is not torch.ops.aten.add.Tensor or node.kwargs or len(node.users) != 1:
        return None
    for part in node.args:
        if not isinstance(part, fx.Node) or not _alike(part.meta["val"], x.meta["val"]):
            return None
    return node.args  # type: ignore[no-any-return]


PASS = Pass(
    "large_batch_norms",
    "pre_grad_custom_pass",
    rewrite,
    needs_channels_last=True,
    reason_not_applied=lambda _: reason_not_applied(),
)
OF_EVERY_SIZE = Pass(
    "all_batch_norms",
    "pre_grad_custom_pass",
    rewrite_every,
    devices=("cpu", "cuda"),
    needs_channels_last=True,
    reason_not_applied=reason_not_there,
    note="own batch norms of every size",
)
TWO_GRADIENTS = Pass("", "joint_custom_pre_pass", add_up_gradients, needs_channels_last=True)
