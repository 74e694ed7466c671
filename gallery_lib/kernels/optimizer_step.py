"""One optimizer step over many tensors at once, with gradient scaling: `gallery::optimizer_step_`.

One pass does all of the work: unscale, skip when `found_inf` is set, apply an optional clip factor,
update states and (master) weights, round to low-precision weights, zero gradients. Nothing waits
for the device: step and skip counters are tensors on it. AdamW, SGD, RMSprop and RAdam follow
torch.optim; LAMB follows its paper, in three launches, since every update needs the norms of its
whole tensor. The formulas are in `optimizer_reference`.

The operator takes flat lists without None, and neither dataclasses nor dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels.optimizer_reference import (
    COUNTS_STEPS,
    RULES,
    STATES,
    Hyperparameters,
    Step,
    reference_step,
    zero_gradients,
)
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.launch import (
    DOUBLE,
    ELEMENTS,
    INT,
    POINTER,
    Launch,
    each,
    filled,
    structure,
)
from gallery_lib.kernels.runtime.operators import kernel_device, register
from gallery_lib.kernels.runtime.tensor_lists import (
    check_same_layout,
    laid_out_as,
    packed,
    tensor_list,
)

NUMBERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")
SWITCHES = ("decoupled_weight_decay", "nesterov", "maximize", "zero_gradients")
"""Hyper-parameters that are on or off, in the order of `enum Flag` in `optimizer_step.cuh`."""

_LISTS = 7  # weight, gradient, three states, master, step
_StepArguments = structure(
    tensors=tensor_list(_LISTS),
    **each(POINTER, "gradient_scale found_inf clip_factor learning_rate_on_device skipped"),
    **each(POINTER, "partial trust_ratio"),
    **each(DOUBLE, "learning_rate weight_decay beta1 beta2 log_beta1 log_beta2 epsilon momentum"),
    flags=INT,
)


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

    Raises:
        InputError: when the arguments do not fit together.
    """
    scalars = {
        "skipped": skipped,
        "gradient_scale": gradient_scale,
        "found_inf": found_inf,
        "clip_factor": clip_factor,
        "learning_rate": learning_rate,
    }
    _check(rule, weights, gradients, states, masters, steps, scalars)
    if not weights:
        return
    present = [k for k, column in enumerate(states) if column is not None]
    flat = [tensor for column in states if column is not None for tensor in column]
    lists = (list(weights), list(gradients), flat, present, list(masters), list(steps))
    numbers = [float(getattr(hyperparameters, name)) for name in NUMBERS]
    switches = [bool(getattr(hyperparameters, name)) for name in SWITCHES]
    torch.ops.gallery.optimizer_step_(rule, *lists, *scalars.values(), numbers, switches)
    changed = [*weights, *flat, *masters, *steps]
    changed += gradients if hyperparameters.zero_gradients else ()
    torch.autograd.graph.increment_version(changed if skipped is None else [*changed, skipped])


def _check(
    rule: str,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Sequence[Tensor] | None],
    masters: Sequence[Tensor],
    steps: Sequence[Tensor],
    scalars: Mapping[str, Tensor | None],
) -> None:
    """Raise InputError unless the arguments of `optimizer_step` fit together."""
    if rule not in RULES:
        raise InputError(
            f"there is no optimizer rule {rule!r}; there are "
            f"{', '.join(RULES)}.{did_you_mean(rule, RULES)}",
            parameter="rule",
        )
    if len(states) != STATES[rule]:
        raise InputError(
            f"{rule} takes {STATES[rule]} columns of states, got {len(states)}.", parameter="states"
        )
    columns = {
        "gradients": gradients,
        **{f"states[{k}]": column for k, column in enumerate(states) if column is not None},
    }
    columns |= {"masters": masters} if masters else {}
    columns |= {"steps": steps} if steps or rule in COUNTS_STEPS else {}
    for name, column in columns.items():
        if len(column) != len(weights):
            raise InputError(
                f"optimizer_step got {len(weights)} weights and {len(column)} {name}.",
                parameter=name,
            )
    if weights:
        _check_tensors(weights, columns)
        _check_scalars(weights[0].device, steps, scalars)


def _check_tensors(weights: Sequence[Tensor], columns: Mapping[str, Sequence[Tensor]]) -> None:
    dtype, device = weights[0].dtype, weights[0].device
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    of_name = {"weights": dtype, "gradients": dtype, "masters": torch.float32}
    for name, column in {"weights": weights, **columns}.items():
        expected = of_name.get(name, torch.float32 if name == "steps" else wide)
        for weight, tensor in zip(weights, column, strict=True):
            if (
                tensor.dtype is not expected
                or tensor.device != device
                or not tensor.is_floating_point()
            ):
                raise InputError(
                    f"{name} must be {expected} on {device}, got {tensor.dtype} on "
                    f"{tensor.device}.",
                    parameter=name,
                )
            if name != "steps" and tensor.shape != weight.shape:
                raise InputError(
                    f"{name} must have the shape of their weight, {tuple(weight.shape)}, got "
                    f"{tuple(tensor.shape)}.",
                    parameter=name,
                )


def _check_scalars(
    device: torch.device, steps: Sequence[Tensor], scalars: Mapping[str, Tensor | None]
) -> None:
    tensors = {name: scalar for name, scalar in scalars.items() if scalar is not None}
    if any(
        tensor.numel() != 1 or tensor.device != device for tensor in (*steps, *tensors.values())
    ):
        raise InputError(
            "steps, counters, scale, found_inf, clip_factor and learning_rate must be scalars on "
            f"{device}."
        )
    for name, scalar in tensors.items():
        dtype = torch.int64 if name == "skipped" else torch.float32
        if scalar.dtype is not dtype:
            raise InputError(
                f"{name} must be {str(dtype)[6:]}, got {scalar.dtype}.", parameter=name
            )


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
    """Return step and hyper-parameters from the operator's arguments."""
    *scalars, numbers, switches = rest
    count = len(weights)
    columns: list[list[Tensor | None]] = [[None] * count for _ in range(STATES[rule])]
    for place, k in enumerate(present):
        columns[k] = list(states[place * count : (place + 1) * count])
    values: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=True)) | dict(
        zip(SWITCHES, switches, strict=True)
    )
    absent: list[Tensor | None] = [None] * count
    return Step(
        rule, weights, gradients, columns, masters or absent, steps or absent, *scalars
    ), Hyperparameters(**values)


def _reference(*arguments: Any) -> None:
    reference_step(*_unflattened(*arguments))


def _device(rule: str, weights: Sequence[Tensor], *_: Any) -> torch.device | None:
    return kernel_device(weights[0])


def _kernel(*inputs: Any) -> None:
    s, h = _unflattened(*inputs)
    gradients = laid_out_as(s.weights, s.gradients)
    there: list[Any] = [column for column in (*s.states, s.masters) if column[0] is not None]
    check_same_layout([s.weights, gradients, *there])
    absent: list[Tensor | None] = [None] * len(s.weights)
    columns = [s.weights, gradients, *s.states, *[absent] * (3 - len(s.states)), s.masters, s.steps]
    first, device = s.weights[0], s.weights[0].device
    for packing, part, blocks in packed(columns):
        partial = ratio = None
        if s.rule == "lamb":
            partial = first.new_empty(2 * blocks, dtype=torch.float64)
            ratio = first.new_empty(packing.count, dtype=torch.float32)
        arguments = filled(
            _StepArguments,
            packing,
            s.gradient_scale,
            s.found_inf,
            s.clip_factor,
            s.learning_rate,
            s.skipped if part.start == 0 else None,
            partial,
            ratio,
            h.lr,
            h.weight_decay,
            h.beta1,
            h.beta2,
            math.log(h.beta1) if h.beta1 > 0 else -math.inf,
            math.log(h.beta2) if h.beta2 > 0 else -math.inf,
            h.eps,
            h.momentum,
            sum(1 << bit for bit, name in enumerate(SWITCHES) if getattr(h, name)),
        )
        launches = [("optimizers.cu", "advance", 1)]
        if s.rule == "lamb":
            launches += [
                ("lamb.cu", "lamb_moments", blocks),
                ("lamb.cu", "lamb_trust_ratios", packing.count),
                ("lamb.cu", "lamb_update", blocks),
            ]
        else:
            launches.append(("optimizers.cu", s.rule, blocks))
        for source, kernel, number in launches:
            launch.run(Launch(source, kernel, ELEMENTS[first.dtype], number, arguments), device)
    # The kernel has zeroed what it has read, which may be copies.
    zero_gradients((g for g, read in zip(s.gradients, gradients, strict=True) if g is not read), h)


register(
    "optimizer_step_",
    "(str rule, Tensor(a!)[] weights, Tensor(b!)[] gradients, Tensor(c!)[] states, int[] present, "
    "Tensor(d!)[] masters, Tensor(e!)[] steps, Tensor(f!)? skipped, Tensor? gradient_scale, "
    "Tensor? found_inf, Tensor? clip_factor, Tensor? learning_rate, float[] numbers, bool[] "
    "switches) -> ()",
    reference=_reference,
    kernel=_kernel,
    device=_device,
    fake=lambda *_: None,
)
