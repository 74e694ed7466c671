"""CUDA graphs of a compiled model, with tensors that callers may keep as in eager mode.

Inductor captures each compiled graph once and replays it, so the host queues one launch in the
place of hundreds. Shapes that change are left out. A replay writes its results, gradients included,
to the memory of the last replay. `clone_graph_outputs(model)` copies what would be lost:
outputs, and gradients that add up over several backward passes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gallery_lib.compiler.calls import wrap_calls
from gallery_lib.config import Compiler

_CAPTURED = {
    "triton.cudagraphs": True,
    "triton.cudagraph_skip_dynamic_graphs": True,
    # With it torch 2.11 leaves most of a static graph out of the captured parts.
    "graph_partition": False,
    # A cast of each weight to the dtype of autocast is a kernel of its own otherwise.
    "combo_kernels": True,
    "combo_kernels_pointwise_only": True,
}


def captured(options: Compiler, device: torch.device) -> bool:
    """Return whether a model that is compiled for `device` with `options` runs as CUDA graphs."""
    return (
        device.type == "cuda"
        and options.backend == "inductor"
        and options.cuda_graphs
        and options.mode != "max-autotune-no-cudagraphs"
    )


def compile_options(options: Compiler, device: torch.device) -> dict[str, Any]:
    """Return Inductor's options for or against CUDA graphs."""
    if captured(options, device):
        return dict(_CAPTURED)
    return {"triton.cudagraphs": False} if device.type == "cuda" else {}


def clone_graph_outputs(model: nn.Module) -> None:
    """Copy outputs and accumulated gradients of a captured `model` before a replay takes them."""
    parameters = list(model.parameters())  # frozen ones may be trained later
    copies: list[Callable[[], Tensor | None]] = [lambda: None] * len(parameters)

    def step(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for number, p in enumerate(parameters):
            if p.grad is not None and p.grad is not copies[number]():
                p.grad = p.grad.clone()
                copies[number] = weakref.ref(p.grad)
        result = call(*args, **kwargs)
        return _copied(result) if isinstance(result, Tensor) else pytree.tree_map(_copied, result)

    wrap_calls(model, step)


def _copied(value: Any) -> Any:
    """Return a copy of a tensor that the model has computed on a GPU, and other values as is."""
    if not isinstance(value, Tensor) or not value.is_cuda or isinstance(value, nn.Parameter):
        return value
    return value.clone()
