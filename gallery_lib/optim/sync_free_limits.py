"""What optimizers that never wait for the device do not take: options, parameters, gradients.

Each function returns the error for what is refused, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime.tensor_lists import is_dense


def option_error(
    optimizer: type[torch.optim.Optimizer], group: Mapping[str, Any], unsupported: Sequence[str]
) -> InputError | None:
    """Return the error for the first of the `unsupported` options that a group sets."""
    for name in unsupported:
        if group.get(name):
            return InputError(
                f"{optimizer.__name__} of gallery_lib does not offer {name}={group[name]!r}. "
                "Use torch.optim's.",
                parameter=name,
            )
    return None


def parameter_error(
    optimizer: type[torch.optim.Optimizer], p: Tensor, state: Mapping[str, Tensor]
) -> InputError | None:
    """Return the error for a parameter that does not suit its gradient, state or the kernels."""
    reason = _gradient_reason(optimizer, p) or _state_reason(p, state)
    return None if reason is None else InputError(reason, parameter="params")


def _gradient_reason(optimizer: type[torch.optim.Optimizer], p: Tensor) -> str | None:
    grad = p.grad
    assert grad is not None
    dense = grad.layout is torch.strided
    if p.dtype not in (torch.float32, torch.float64) or not dense or grad.dtype is not p.dtype:
        return (
            f"{optimizer.__name__} of gallery_lib steps fp32 and fp64 parameters with "
            f"dense gradients; this one is {p.dtype} with {'dense' if dense else 'sparse'} "
            f"gradients in {grad.dtype}. "
            "Keep weights in fp32: autocast casts what is computed in 16 bits."
        )
    if p.shape != grad.shape or p.device != grad.device:
        return (
            f"a parameter {tuple(p.shape)} on {p.device} has a gradient "
            f"{tuple(grad.shape)} on {grad.device}. "
            "Move the model before its gradients are made."
        )
    if p.numel() and grad.data_ptr() == p.data_ptr():
        return (
            f"the gradient of a parameter {tuple(p.shape)} is the memory of the "
            "parameter itself. Clone it."
        )
    if p.is_cuda and not is_dense(p):
        return f"a parameter {tuple(p.shape)} has gaps (strides {p.stride()}). Make it contiguous."
    return None


def _state_reason(p: Tensor, state: Mapping[str, Tensor]) -> str | None:
    for name, tensor in state.items():
        if tensor.dtype is not p.dtype or tensor.device != p.device:
            return (
                f"the state {name} is {tensor.dtype} on {tensor.device} and its parameter "
                f"{p.dtype} on {p.device}. "
                "Load the optimizer's state after the model was moved."
            )
    return None
