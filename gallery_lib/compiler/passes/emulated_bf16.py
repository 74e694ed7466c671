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

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from gallery_lib.compiler.passes.graph_pass import Pass, write
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
        if node.op != "call_function" or node.target not in _OPERATORS:
            continue
        value = node.meta["val"]
        values = value if isinstance(value, (tuple, list)) else (value,)
        if not any(isinstance(one, Tensor) and one.dtype is torch.bfloat16 for one in values):
            continue
        if any(isinstance(one, fx.Node) for one in node.kwargs.values()):
            continue
        results = write(node, _in_fp32(node.target, node.kwargs), *node.args)
        if isinstance(results, fx.Node):
            node.replace_all_uses_with(results)
        else:  # convolution_backward has one output per operand, None where it is not wanted
            for user in list(node.users):
                if (result := results[user.args[1]]) is not None:
                    user.replace_all_uses_with(result)
                graph.erase_node(user)
        graph.erase_node(node)


def _in_fp32(operator: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the operator on widened operands, with its results rounded to bfloat16."""

    def cast(value: Any, there: torch.dtype, dtype: torch.dtype) -> Any:
        is_tensor = isinstance(value, Tensor) and value.dtype is there
        return value.to(dtype) if is_tensor else value

    def widened(*arguments: Any) -> Any:
        wide = [cast(value, torch.bfloat16, torch.float32) for value in arguments]
        results = operator(*wide, **options)
        return tree_map(lambda one: cast(one, torch.float32, torch.bfloat16), results)

    return widened


def _reason() -> str | None:
    return "the processor has bfloat16 units" if hardware.computes_in_bf16("cpu") else None


PASS = Pass("bf16_on_fp32_units", "post_grad_custom_pre_pass", rewrite, reason_not_applied=_reason)
