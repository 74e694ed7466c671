"""States of an optimizer under the names of its parameters: one format for every implementation.

Adam of torch, fused or not, and this package's forms of it have the same states. So a checkpoint of
any of them is gone on with by the others. Which implementation takes the steps is the present
optimizer's choice, not the checkpoint's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Options of a group that choose among implementations of the same rule."""


def names_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """Return the name of each parameter of each group; one outside the model has a number."""
    known = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    return [
        [known.get(id(p), f"group-{number}.{place}") for place, p in enumerate(group["params"])]
        for number, group in enumerate(optimizer.param_groups)
    ]


def state_of(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state: large tensors by `NAME/KEY`, and all the rest.

    Step counts and other scalars are part of the rest.
    """
    state = optimizer.state_dict()
    groups = names_of(optimizer, model)
    order = [name for names in groups for name in names]
    large: dict[str, Tensor] = {}
    rest: dict[str, dict[str, Any]] = {}
    for number, values in state["state"].items():
        name = order[number] if isinstance(number, int) else str(number)
        rest[name] = {}
        for key, value in values.items():
            if isinstance(value, Tensor) and value.dim() > 0:
                large[f"{name}/{key}"] = value
            else:
                rest[name][key] = value
    options = [
        {name: value for name, value in group.items() if name != "params"}
        for group in state["param_groups"]
    ]
    facts = {"kind": type(optimizer).__name__, "parameters": groups}
    return large, {**facts, "groups": options, "states": rest}


def difference(optimizer: torch.optim.Optimizer, model: nn.Module, rest: dict[str, Any]) -> str:
    """Return how the optimizer differs from that of a checkpoint, or "" where it fits."""
    kind, groups = type(optimizer).__name__, names_of(optimizer, model)
    if kind != rest["kind"]:
        return f"is of {rest['kind']}, and this training has {kind}"
    if groups != rest["parameters"]:
        before, now = (sum(map(len, names)) for names in (rest["parameters"], groups))
        return (
            f"has {before} parameters in {len(rest['parameters'])} group(s), and this optimizer "
            f"{now} in {len(groups)}, or others"
        )
    return ""


def targets(
    optimizer: torch.optim.Optimizer, model: nn.Module, shapes: dict[str, tuple[Any, torch.dtype]]
) -> dict[str, Tensor]:
    """Return an empty tensor for each large state, laid out like its parameter.

    Args:
        optimizer: the present optimizer.
        model: the model that it trains.
        shapes: size and dtype by `NAME/KEY`.
    """
    parameters = {
        name: p
        for names, group in zip(names_of(optimizer, model), optimizer.param_groups, strict=True)
        for name, p in zip(names, group["params"], strict=True)
    }
    result = {}
    for key, (size, dtype) in shapes.items():
        parameter = parameters[key.rpartition("/")[0]]
        result[key] = (
            torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            if parameter.shape == size
            else torch.empty(size, dtype=dtype, device=parameter.device)
        )
    return result


def load(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    large: dict[str, Tensor],
    rest: dict[str, Any],
) -> None:
    """Load what `state_of` returned; the large tensors become the optimizer's own."""
    order = [name for names in names_of(optimizer, model) for name in names]
    numbers = {name: number for number, name in enumerate(order)}
    states: dict[int, dict[str, Any]] = {
        numbers[name]: dict(values) for name, values in rest["states"].items()
    }
    for key, value in large.items():
        name, _, kind = key.rpartition("/")
        states[numbers[name]][kind] = value
    present = optimizer.state_dict()["param_groups"]
    groups = [
        {
            **saved,
            **{name: group[name] for name in IMPLEMENTATION if name in group},
            "params": group["params"],
        }
        for saved, group in zip(rest["groups"], present, strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
