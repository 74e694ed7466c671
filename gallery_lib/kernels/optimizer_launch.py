"""Launches of the optimizer kernels as plain data: `advance` counts the step, then the rule runs.

LAMB's rule takes three launches, since every update needs the norms of its whole tensor.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
from torch import Tensor

from gallery_lib.kernels.optimizer_arguments import SWITCHES
from gallery_lib.kernels.optimizer_reference import Hyperparameters, Step
from gallery_lib.kernels.runtime.launch import ELEMENTS, Launch
from gallery_lib.kernels.runtime.tensor_lists import packed, tensor_list

SOURCE, LAMB_SOURCE = "optimizers.cu", "lamb.cu"
_LISTS = 7  # weight, gradient, three states, master, step


class _StepArguments(ctypes.Structure):
    _fields_ = (
        ("tensors", tensor_list(_LISTS)),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "gradient_scale",
                "found_inf",
                "clip_factor",
                "learning_rate_on_device",
                "skipped",
            )
        ),
        ("partial", ctypes.c_void_p),
        ("trust_ratio", ctypes.c_void_p),
        *(
            (name, ctypes.c_double)
            for name in (
                "learning_rate",
                "weight_decay",
                "beta1",
                "beta2",
                "log_beta1",
                "log_beta2",
            )
        ),
        ("epsilon", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("flags", ctypes.c_int),
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def launches(
    s: Step, h: Hyperparameters, new: Callable[[int, torch.dtype], Tensor]
) -> tuple[list[Launch], list[Tensor]]:
    """Return the launches in order, and the memory that passes data between them.

    `new(elements, dtype)` allocates that memory.
    """
    absent: list[Tensor | None] = [None] * len(s.weights)
    columns = [
        s.weights,
        s.gradients,
        *s.states,
        *[absent] * (3 - len(s.states)),
        s.masters,
        s.steps,
    ]
    element = ELEMENTS[s.weights[0].dtype]
    plan, between = [], []
    for packing, part, blocks in packed(columns):
        arguments = _StepArguments(
            tensors=packing,
            gradient_scale=_address(s.gradient_scale),
            found_inf=_address(s.found_inf),
            clip_factor=_address(s.clip_factor),
            learning_rate_on_device=_address(s.learning_rate),
            skipped=_address(s.skipped) if part.start == 0 else None,
            learning_rate=h.lr,
            weight_decay=h.weight_decay,
            beta1=h.beta1,
            beta2=h.beta2,
            log_beta1=math.log(h.beta1) if h.beta1 > 0 else -math.inf,
            log_beta2=math.log(h.beta2) if h.beta2 > 0 else -math.inf,
            epsilon=h.eps,
            momentum=h.momentum,
            flags=sum(1 << bit for bit, name in enumerate(SWITCHES) if getattr(h, name)),
        )
        plan.append(Launch(SOURCE, "advance", element, 1, arguments))
        if s.rule != "lamb":
            plan.append(Launch(SOURCE, s.rule, element, blocks, arguments))
            continue
        partial, ratio = new(2 * blocks, torch.float64), new(packing.count, torch.float32)
        arguments.partial, arguments.trust_ratio = partial.data_ptr(), ratio.data_ptr()
        between += [partial, ratio]
        plan += [
            Launch(LAMB_SOURCE, "lamb_moments", element, blocks, arguments),
            Launch(LAMB_SOURCE, "lamb_trust_ratios", element, packing.count, arguments),
            Launch(LAMB_SOURCE, "lamb_update", element, blocks, arguments),
        ]
    return plan, between
