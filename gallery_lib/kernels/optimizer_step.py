"""One optimizer step over many tensors at once, with gradient scaling: `gallery::optimizer_step_`.

One pass does all of the work: unscale, skip when `found_inf` is set, apply an optional clip factor,
update states and (master) weights, round to low-precision weights, zero gradients. Nothing waits
for the device: step and skip counters are tensors on it. AdamW, SGD, RMSprop and RAdam follow
torch.optim; LAMB follows its paper, in three launches. `optimizer_reference.py` holds the formulas.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.optimizer_reference import (
    COUNTS_STEPS,
    RULES,
    STATES,
    Hyperparameters,
    Step,
    reference_step,
)
from gallery_lib.kernels.runtime import call_counts, fallback, launch
from gallery_lib.kernels.runtime.launch import Launch
from gallery_lib.kernels.runtime.tensor_lists import (
    check_same_layout,
    packed,
    same_layout,
    tensor_list,
)

SOURCE, LAMB_SOURCE = "optimizers.cu", "lamb.cu"
_LISTS = 7  # weight, gradient, three states, master, step
_FLAGS = ("decoupled_weight_decay", "nesterov", "maximize", "zero_gradients")


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
    defines = (("ELEMENT", ELEMENTS[s.weights[0].dtype]),)
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
            flags=sum(1 << bit for bit, name in enumerate(_FLAGS) if getattr(h, name)),
        )
        plan.append(Launch(SOURCE, "advance", defines, 1, arguments))
        if s.rule != "lamb":
            plan.append(Launch(SOURCE, s.rule, defines, blocks, arguments))
            continue
        partial, ratio = new(2 * blocks, torch.float64), new(packing.count, torch.float32)
        arguments.partial, arguments.trust_ratio = partial.data_ptr(), ratio.data_ptr()
        between += [partial, ratio]
        plan += [
            Launch(LAMB_SOURCE, "lamb_moments", defines, blocks, arguments),
            Launch(LAMB_SOURCE, "lamb_trust_ratios", defines, packing.count, arguments),
            Launch(LAMB_SOURCE, "lamb_update", defines, blocks, arguments),
        ]
    return plan, between


torch.library.define(
    "gallery::optimizer_step_",
    "(str rule, Tensor(a!)[] weights, Tensor(b!)[] gradients, Tensor(c!)[] states, int[] present, "
    "Tensor(d!)[] masters, Tensor(e!)[] steps, Tensor(f!)? skipped, Tensor? gradient_scale, "
    "Tensor? found_inf, Tensor? clip_factor, Tensor? learning_rate, float[] numbers, bool[] "
    "switches) -> ()",
)
_NUMBERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")
_SWITCHES = ("nesterov", "decoupled_weight_decay", "maximize", "zero_gradients")


def optimizer_step(
    rule: str,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Sequence[Tensor] | None],
    hyperparameters: Hyperparameters,
    *,
    masters: Sequence[Tensor] = (),
    steps: Sequence[Tensor] = (),
    skipped: Tensor | None = None,
    gradient_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    clip_factor: Tensor | None = None,
    learning_rate: Tensor | None = None,
) -> None:
    """Run one step of `rule`, in place.

    Raises InputError when the arguments do not fit together.

    Args:
        rule: a name in `optimizer_reference.RULES`.
        weights: tensors of one dtype and device.
        gradients: a tensor for each weight, of its dtype and shape.
        states: as many columns as the rule has states. A column holds a tensor for each weight, or
            is None where the rule does without. Tensors are fp32 (fp64 for fp64 weights), laid out
            as the weight.
        hyperparameters: hyper-parameters of the parameter group.
        masters: fp32 copies of 16-bit weights. When given, they are updated and the weights are
            their rounding.
        steps: an fp32 scalar for each weight, which counts the steps done. Rules that read the
            count need them.
        skipped: an int64 scalar, which counts the steps skipped.
        gradient_scale: fp32 scalar by which gradients are divided.
        found_inf: fp32 scalar; when it is not 0, the step is skipped.
        clip_factor: fp32 scalar that gradients are multiplied by.
        learning_rate: fp32 scalar used in place of `lr`.
    """
    _check(
        rule,
        weights,
        gradients,
        states,
        masters,
        steps,
        (skipped, gradient_scale, found_inf, clip_factor, learning_rate),
    )
    if not weights:
        return
    present = [k for k, column in enumerate(states) if column is not None]
    flat = [tensor for column in states if column is not None for tensor in column]
    numbers = [float(getattr(hyperparameters, name)) for name in _NUMBERS]
    switches = [bool(getattr(hyperparameters, name)) for name in _SWITCHES]
    scalars = (skipped, gradient_scale, found_inf, clip_factor, learning_rate)
    lists = (list(weights), list(gradients), flat, present, list(masters), list(steps))
    torch.ops.gallery.optimizer_step_(rule, *lists, *scalars, numbers, switches)
    changed = [
        *weights,
        *flat,
        *masters,
        *steps,
        *(gradients if hyperparameters.zero_gradients else ()),
    ]
    torch.autograd.graph.increment_version(changed if skipped is None else [*changed, skipped])


def _check(
    rule: str,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Sequence[Tensor] | None],
    masters: Sequence[Tensor],
    steps: Sequence[Tensor],
    scalars: Sequence[Tensor | None],
) -> None:
    if rule not in RULES:
        raise InputError(
            f"there is no optimizer rule {rule!r}; there are "
            f"{', '.join(RULES)}.{did_you_mean(rule, RULES)}"
        )
    if len(states) != STATES[rule]:
        raise InputError(f"{rule} takes {STATES[rule]} columns of states, got {len(states)}.")
    columns = {
        "gradients": gradients,
        **{f"states[{k}]": column for k, column in enumerate(states) if column is not None},
    }
    columns |= {"masters": masters} if masters else {}
    columns |= {"steps": steps} if steps or rule in COUNTS_STEPS else {}
    for name, column in columns.items():
        if len(column) != len(weights):
            raise InputError(f"optimizer_step got {len(weights)} weights and {len(column)} {name}.")
    if not weights:
        return
    dtype, device = weights[0].dtype, weights[0].device
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    expected = {name: wide for name in columns} | {
        "weights": dtype,
        "gradients": dtype,
        "masters": torch.float32,
        "steps": torch.float32,
    }
    for name, column in {"weights": weights, **columns}.items():
        for tensor in column:
            if (
                tensor.dtype is not expected[name]
                or tensor.device != device
                or not tensor.is_floating_point()
            ):
                raise InputError(
                    f"{name} must be {expected[name]} on {device}, got {tensor.dtype} on "
                    f"{tensor.device}."
                )
    for name, column in columns.items():
        for weight, tensor in zip(weights, column, strict=True):
            if name != "steps" and tensor.shape != weight.shape:
                raise InputError(
                    f"{name} must have the shape of their weight, {tuple(weight.shape)}, got "
                    f"{tuple(tensor.shape)}."
                )
    if any(
        tensor is not None and (tensor.numel() != 1 or tensor.device != device)
        for tensor in (*steps, *scalars)
    ):
        raise InputError(
            "steps, counters, scale, found_inf, clip_factor and learning_rate must be scalars on "
            f"{device}."
        )
    for name, scalar in zip(
        ("gradient_scale", "found_inf", "clip_factor", "learning_rate"), scalars[1:], strict=True
    ):
        if scalar is not None and scalar.dtype is not torch.float32:
            raise InputError(f"{name} must be float32, got {scalar.dtype}.")
    if scalars[0] is not None and scalars[0].dtype is not torch.int64:
        raise InputError(f"skipped must be int64, got {scalars[0].dtype}.")


def _unflattened(
    rule: str,
    weights: list[Tensor],
    gradients: list[Tensor],
    states: list[Tensor],
    present: list[int],
    masters: list[Tensor],
    steps: list[Tensor],
    *rest: Any,
) -> tuple[Step, Hyperparameters]:
    """Return step and hyper-parameters from the operator's arguments.

    The operator's lists are flat and hold no None.
    """
    *scalars, numbers, switches = rest
    count = len(weights)
    columns: list[list[Tensor | None]] = [[None] * count for _ in range(STATES[rule])]
    for place, k in enumerate(present):
        columns[k] = list(states[place * count : (place + 1) * count])
    values: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True)) | dict(
        zip(_SWITCHES, switches, strict=True)
    )
    absent: list[Tensor | None] = [None] * count
    return Step(
        rule, weights, gradients, columns, masters or absent, steps or absent, *scalars
    ), Hyperparameters(**values)


def _on_cpu(*arguments: Any) -> None:
    call_counts.ran("optimizer_step_", call_counts.PLAIN_TORCH)
    reference_step(*_unflattened(*arguments))


def _on_cuda(*arguments: Any) -> None:
    s, h = _unflattened(*arguments)
    device = s.weights[0].device
    if s.weights[0].dtype not in ELEMENTS or not fallback.kernels_run(device):
        return _on_cpu(*arguments)
    call_counts.ran("optimizer_step_", call_counts.KERNEL)
    laid_out = [
        g if same_layout(w, g) else torch.empty_like(w).copy_(g)
        for w, g in zip(s.weights, s.gradients, strict=True)
    ]
    there: list[Any] = [column for column in (*s.states, s.masters) if column[0] is not None]
    check_same_layout([s.weights, laid_out, *there])

    def new(elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, device=device)

    # The memory between launches has to live until all of them are enqueued.
    plan, _between = launches(dataclasses.replace(s, gradients=laid_out), h, new)
    for each in plan:
        launch.run(each, device)
    if h.zero_gradients:
        for gradient, copy in zip(s.gradients, laid_out, strict=True):
            if gradient is not copy:
                gradient.zero_()
    return None


torch.library.impl("gallery::optimizer_step_", "cpu", _on_cpu)
torch.library.impl("gallery::optimizer_step_", "cuda", _on_cuda)


@torch.library.register_fake("gallery::optimizer_step_")
def _fake(*arguments: Any) -> None:
    return None
