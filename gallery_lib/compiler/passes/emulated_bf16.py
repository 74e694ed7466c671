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

from gallery_lib.compiler.passes.graph_pass import Pass, Writer
from gallery_lib.system import hardware

_aten = torch.ops.aten
_OPERATORS = {
    _aten.convolution.default,
    _aten.convolution_backward.default,
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
}


def rewrite(graph: fx.Graph) -> None:
    """Compute bfloat16 products on the fp32 units."""
    for node in list(graph.nodes):
        ours = node.op == "call_function" and node.target in _OPERATORS
        if ours and any(value.dtype is torch.bfloat16 for value in _tensors(node)):
            _widen(graph, node)


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [one for one in values if isinstance(one, torch.Tensor)]


def _widen(graph: fx.Graph, node: fx.Node) -> None:
    write = Writer(graph, node)

    def widened(argument: Any) -> Any:
        if isinstance(argument, fx.Node) and all(
            value.dtype is torch.bfloat16 for value in _tensors(argument)
        ):
            return write.cast(argument, torch.float32)
        return argument

    node.args = tuple(widened(argument) for argument in node.args)
    value, outputs = node.meta["val"], [node]
    # convolution_backward has one output per operand, None where it is not wanted.
    if isinstance(value, (tuple, list)):
        node.meta["val"] = type(value)(
            one.to(torch.float32) if isinstance(one, torch.Tensor) else one for one in value
        )
        outputs = [user for user in node.users if user.target is operator.getitem]
    for output in outputs:
        if not isinstance(output.meta.get("val"), torch.Tensor):
            continue
        output.meta["val"] = output.meta["val"].to(torch.float32)
        users = list(output.users)
        rounded = Writer(graph, output.next).cast(output, torch.bfloat16)
        for user in users:
            user.replace_input_with(output, rounded)


def _reason() -> str | None:
    return "the processor has bfloat16 units" if hardware.computes_in_bf16("cpu") else None


PASS = Pass("bf16_on_fp32_units", "post_grad_custom_pre_pass", rewrite, reason_not_applied=_reason)
