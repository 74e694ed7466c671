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
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.nn import functional

from gallery_lib.compiler.passes import graph_writer
from gallery_lib.compiler.passes.graph_writer import as_traced, behind_convolutions
from gallery_lib.kernels import batch_norm, batch_norm_statistics
from gallery_lib.kernels.runtime import usage
from gallery_lib.kernels.runtime.launch import ELEMENTS
from gallery_lib.system import hardware

SMALLEST_BYTES = 1 << 20
"""Bytes of images [N, C, H, W] from which on our operators are used; below, nothing was gained."""

_DTYPES = {"cpu": (torch.bfloat16, torch.float32), "cuda": tuple(ELEMENTS)}
"""Dtypes of images that the C++ and the kernels are written for."""
_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
_RELUS: dict[str, tuple[Any, ...]] = {
    "call_function": (functional.relu, torch.relu, torch.relu_),
    "call_method": ("relu", "relu_"),
}
_INTO_THE_FIRST: dict[str, tuple[Any, ...]] = {
    "call_function": (operator.iadd,),
    "call_method": ("add_",),
}
_ADDITIONS: dict[str, tuple[Any, ...]] = {
    "call_function": (operator.add, torch.add, operator.iadd),
    "call_method": ("add", "add_"),
}
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


class LargeBatchNorms(CustomGraphPass):
    """Inductor's `pre_grad_custom_pass` that puts `gallery::batch_norm_relu` in torch's place.

    `uuid` goes into the key of Inductor's cache.
    """

    def __init__(self, *, every: bool = False) -> None:
        """Take large images in bfloat16 on the CPU, or `every` one that the operators take."""
        self.every = every

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        inside = behind_convolutions(graph)
        for node in graph.find_nodes(op="call_function", target=functional.batch_norm):
            if node not in inside:
                continue
            given = {**_DEFAULTS, **dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
            behind = _behind(node)
            value = _value(given["input"])
            if behind is None or value is None or not self._takes(value):
                continue
            if not _suits(given, value, behind.residual):
                continue
            if reason_not_there(value.device):  # asked late, since the first time builds C++
                return
            result = _written(graph, node, behind, given)
            with graph.inserting_before(result.next):
                result = as_traced(graph, result, behind.relu)
            result.meta = dict(behind.relu.meta)
            behind.relu.replace_all_uses_with(result)
            for done in (behind.relu, behind.addition, node):
                if done is not None:
                    graph.erase_node(done)

    def uuid(self) -> Any:
        """Return a hash of this file and the operators', and what is taken."""
        operators = (batch_norm.__file__, batch_norm_statistics.__file__)
        return get_hash_for_files((__file__, graph_writer.__file__, *operators)), self.every

    def _takes(self, images: Tensor) -> bool:
        """Return whether batch norms over these images are ours."""
        if images.dim() != 4 or not all(isinstance(size, int) for size in images.shape):
            return False
        if self.every:
            return images.dtype in _DTYPES.get(images.device.type, ())
        return (
            images.device.type == "cpu"
            and images.dtype is torch.bfloat16
            and math.prod(images.shape) * images.itemsize >= SMALLEST_BYTES
        )


class _Behind(NamedTuple):
    """What follows a batch norm: a ReLU, perhaps with the addition of a residual before it."""

    relu: fx.Node
    addition: fx.Node | None = None
    residual: fx.Node | None = None


def _behind(node: fx.Node) -> _Behind | None:
    """Return what alone reads the result of `node`, or None where that is something else."""
    reader = _only_reader(node)
    if reader is None:
        return None
    if _is(reader, _RELUS):
        return _Behind(reader)
    relu = _only_reader(reader)
    if relu is None or not _is(relu, _RELUS) or not _is(reader, _ADDITIONS):
        return None
    if reader.kwargs or len(reader.args) != 2:
        return None
    first, second = reader.args
    if first is not node and _is(reader, _INTO_THE_FIRST):
        return None  # the residual is changed, and may be read again
    other = second if first is node else first
    if not isinstance(other, fx.Node) or other is node or _is_read_between(node, reader):
        return None
    return _Behind(relu, reader, other)


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


def _is(node: fx.Node, kinds: dict[str, tuple[Any, ...]]) -> bool:
    return node.target in kinds.get(node.op, ())


def _suits(given: dict[str, Any], value: Tensor, residual: fx.Node | None) -> bool:
    """Return whether our operators take a call of `batch_norm` with these arguments."""
    beside = _value(residual)
    channels = [given[name] for name in ("running_mean", "running_var", "weight", "bias")]
    return (
        given["training"] is True
        and isinstance(given["momentum"], float)
        and isinstance(given["eps"], float)
        and (given["running_mean"] is None) == (given["running_var"] is None)
        and (residual is None or (beside is not None and _are_alike(beside, value)))
        and all(channel is None or _is_fp32(_value(channel)) for channel in channels)
    )


def _are_alike(residual: Tensor, value: Tensor) -> bool:
    return residual.shape == value.shape and residual.dtype is value.dtype


def _is_fp32(value: Tensor | None) -> bool:
    return value is not None and value.dtype is torch.float32


def _value(node: Any) -> Tensor | None:
    """Return what is known of a node's tensor, or None."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _written(graph: fx.Graph, node: fx.Node, behind: _Behind, given: dict[str, Any]) -> fx.Node:
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
    with graph.inserting_before(behind.addition or node):
        return graph.call_function(
            _OURS.batch_norm_relu.default,
            (image, behind.residual, *values, given["weight"], given["bias"]),
        )
