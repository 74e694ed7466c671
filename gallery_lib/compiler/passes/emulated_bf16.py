"""bfloat16 autocast on the fp32 units of CPUs that have no bfloat16 units.

On such CPUs oneDNN emulates bfloat16 convolutions and matrix products at a fraction of the fp32
rate. This graph pass keeps what autocast means: operands rounded to bfloat16, accumulation in fp32,
result rounded to bfloat16. The arithmetic runs on the fp32 units. Each such operator gets its
operands widened, which is exact, and its result rounded. The casts are pointwise, so Inductor fuses
them into their neighbours.

Nothing is lost in precision against the emulation: only the order of fp32 summation differs. On
CPUs with bfloat16 units the pass is not installed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

_aten = torch.ops.aten
_OPERATORS = {
    _aten.convolution.default,
    _aten.convolution_backward.default,
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
}


class EmulatedBf16(CustomGraphPass):
    """Inductor post-grad pass that computes bfloat16 products on the fp32 units.

    `uuid` goes into the key of Inductor's cache.
    """

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in _OPERATORS and _yields_bf16(node):
                _widen(graph, node)

    def uuid(self) -> Any:
        """Return an identifier that changes whenever the pass does something else."""
        return b"gallery_lib.emulated_bf16.1"


def _fake_values(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    return [
        v
        for v in (value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(v, torch.Tensor)
    ]


def _yields_bf16(node: fx.Node) -> bool:
    return any(value.dtype is torch.bfloat16 for value in _fake_values(node))


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    result = graph.call_function(torch.ops.prims.convert_element_type.default, (node, dtype))
    result.meta["val"] = node.meta["val"].to(dtype)
    return result


def _widen(graph: fx.Graph, node: fx.Node) -> None:
    def widened(argument: Any) -> Any:
        if isinstance(argument, fx.Node) and all(
            v.dtype is torch.bfloat16 for v in _fake_values(argument)
        ):
            with graph.inserting_before(node):
                return _cast(graph, argument, torch.float32)
        return argument

    node.args = tuple(widened(argument) for argument in node.args)
    value = node.meta["val"]
    # convolution_backward has one output per operand, None where it is not wanted.
    if isinstance(value, (tuple, list)):
        node.meta["val"] = type(value)(
            v.to(torch.float32) if isinstance(v, torch.Tensor) else v for v in value
        )
        outputs = [user for user in node.users if user.target is operator.getitem]
    else:
        outputs = [node]
    for output in outputs:
        if not isinstance(output.meta.get("val"), torch.Tensor):
            continue
        output.meta["val"] = output.meta["val"].to(torch.float32)
        users = list(output.users)
        with graph.inserting_after(output):
            rounded = _cast(graph, output, torch.bfloat16)
        for user in users:
            user.replace_input_with(output, rounded)
