"""One optimizer step over many tensors at once, with gradient scaling: `gallery::optimizer_step_`.

One pass does all of the work: unscale, skip when `found_inf` is set, apply an optional clip factor,
update states and (master) weights, round to low-precision weights, zero gradients. Nothing waits
for the device: step and skip counters are tensors on it. AdamW, SGD, RMSprop and RAdam follow
torch.optim; LAMB follows its paper, in three launches. The formulas are in
`optimizer_reference`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.optimizer_arguments import (
    check,
    flat_hyperparameters,
    flat_states,
    unflattened,
)
from gallery_lib.kernels.optimizer_launch import launches
from gallery_lib.kernels.optimizer_reference import Hyperparameters, reference_step, zero_gradients
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.operators import kernel_device, register
from gallery_lib.kernels.runtime.tensor_lists import check_same_layout, laid_out_as


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
    check(rule, weights, gradients, states, masters, steps, scalars)
    if not weights:
        return
    present, flat = flat_states(states)
    lists = (list(weights), list(gradients), flat, present, list(masters), list(steps))
    torch.ops.gallery.optimizer_step_(
        rule, *lists, *scalars.values(), *flat_hyperparameters(hyperparameters)
    )
    changed = [*weights, *flat, *masters, *steps]
    changed += gradients if hyperparameters.zero_gradients else ()
    torch.autograd.graph.increment_version(changed if skipped is None else [*changed, skipped])


def _reference(*arguments: Any) -> None:
    reference_step(*unflattened(*arguments))


def _device(rule: str, weights: Sequence[Tensor], *_: Any) -> torch.device | None:
    return kernel_device(weights[0])


def _kernel(*arguments: Any) -> None:
    s, h = unflattened(*arguments)
    device = s.weights[0].device
    gradients = laid_out_as(s.weights, s.gradients)
    there: list[Any] = [column for column in (*s.states, s.masters) if column[0] is not None]
    check_same_layout([s.weights, gradients, *there])

    def new(elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, device=device)

    # The memory between launches has to live until all of them are enqueued.
    plan, _between = launches(dataclasses.replace(s, gradients=gradients), h, new)
    for kernel_launch in plan:
        launch.run(kernel_launch, device)
    # The kernel has zeroed what it has read, which may be copies.
    zero_gradients((g for g, read in zip(s.gradients, gradients, strict=True) if g is not read), h)


def _fake(*arguments: Any) -> None:
    return None


register(
    "optimizer_step_",
    "(str rule, Tensor(a!)[] weights, Tensor(b!)[] gradients, Tensor(c!)[] states, int[] present, "
    "Tensor(d!)[] masters, Tensor(e!)[] steps, Tensor(f!)? skipped, Tensor? gradient_scale, "
    "Tensor? found_inf, Tensor? clip_factor, Tensor? learning_rate, float[] numbers, bool[] "
    "switches) -> ()",
    reference=_reference,
    kernel=_kernel,
    device=_device,
    fake=_fake,
)
