"""Arguments of an optimizer step: whether they fit together, and how the operator takes them.

An operator takes flat lists without None, and neither dataclasses nor dictionaries.
"""

from __future__ import annotations

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
)

NUMBERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")
SWITCHES = ("decoupled_weight_decay", "nesterov", "maximize", "zero_gradients")
"""Hyper-parameters that are on or off, in the order of `enum Flag` in `optimizer_step.cuh`."""

Columns = Mapping[str, Sequence[Tensor]]
"""Tensors of each weight, by the name that errors give them."""


def check(
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
        _check_dtypes(weights, columns)
        _check_shapes(weights, columns)
        _check_scalars(weights[0].device, steps, scalars)


def _check_dtypes(weights: Sequence[Tensor], columns: Columns) -> None:
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
                    f"{tensor.device}.",
                    parameter=name,
                )


def _check_shapes(weights: Sequence[Tensor], columns: Columns) -> None:
    for name, column in columns.items():
        for weight, tensor in zip(weights, column, strict=True):
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


def flat_states(states: Sequence[Sequence[Tensor] | None]) -> tuple[list[int], list[Tensor]]:
    """Return the numbers of the columns that are there, and their tensors one after the other."""
    present = [k for k, column in enumerate(states) if column is not None]
    return present, [tensor for column in states if column is not None for tensor in column]


def flat_hyperparameters(h: Hyperparameters) -> tuple[list[float], list[bool]]:
    """Return the values of NUMBERS and SWITCHES."""
    return (
        [float(getattr(h, name)) for name in NUMBERS],
        [bool(getattr(h, name)) for name in SWITCHES],
    )


def unflattened(
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
