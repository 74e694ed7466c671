"""Odd models while ways of averaging take turns: their parameters, gradients and options."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, options_of, stack
from on_ranks.turns import STEPS, equal, train_step, tuned


class Odd(nn.Module):
    """Model with parameters of every type and form that DDP takes."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            )

        self.complex = weight(6, 8, dtype=torch.complex64)
        self.complex_turned = nn.Parameter(weight(7, 5, dtype=torch.complex64).data.t())
        self.doubles, self.double_bias = (
            weight(40, 30, dtype=torch.float64),
            weight(30, dtype=torch.float64),
        )
        self.halves, self.brain = (
            weight(9, 7, dtype=torch.float16),
            weight(9, 7, dtype=torch.bfloat16),
        )
        self.nothing, self.nothing_double = weight(0, 3), weight(0, dtype=torch.float64)
        self.turned = nn.Parameter(weight(5, 4, 3, 3).data.to(memory_format=torch.channels_last))
        self.single, self.shared = weight(), weight(12, 10)
        self.again = self.shared
        self.table = nn.Embedding(10, 4, sparse=sparse)
        with torch.no_grad():
            self.table.weight.copy_(weight(10, 4))
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, step: int) -> Tensor:
        rank, total = dist.get_rank(), torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.parameters()):
            if parameter is self.table.weight:
                continue
            generator = torch.Generator().manual_seed(1000 * step + 100 * rank + number)
            factor = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                parameter.dtype
            )
            scaled = parameter * factor
            total = (
                total
                + (
                    torch.view_as_real(scaled).pow(2) if scaled.is_complex() else scaled.double()
                ).sum()
            )
        return total + self.table(torch.tensor([rank, step % 10, 3, 3])).double().sum()


def odd_parameters(values: dict[str, Any], sparse: bool) -> dict[str, float]:
    """Return how far each mean gradient is from plain DDP's, over a few steps, by parameter.

    The unit is the largest gradient.
    """
    models = [DDP(Odd(sparse)), accelerate_ddp(DDP(Odd(sparse)), options_of(values))]
    apart: dict[str, float] = {}
    for step in range(4):
        for model in models:
            model.zero_grad()
            model(step).backward()
        for (name, first), second in zip(
            models[0].module.named_parameters(), models[1].parameters(), strict=True
        ):
            a, b = (
                each.grad.to_dense() if each.grad.is_sparse else each.grad
                for each in (first, second)
            )
            assert a.dtype == b.dtype and first.grad.is_sparse == second.grad.is_sparse
            if a.numel():
                apart[name] = max(
                    apart.get(name, 0.0), ((a - b).abs().max() / a.abs().max()).item()
                )
    accelerate_ddp(models[1], Comm())
    return apart


def large_gradients(values: dict[str, Any]) -> bool:
    """Return whether gradients arrive as in plain DDP when only their sum overflows.

    Their mean does not overflow.
    """
    models = [DDP(stack([6, 4])), accelerate_ddp(DDP(stack([6, 4])), options_of(values))]
    for model in models:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
        model(batch(0, 6)).sum().backward()
    accelerate_ddp(models[1], Comm())
    return equal(*models, gradients=True) and bool(models[0].module[0].weight.grad.isfinite().all())


def sparse_while_tuning() -> list[bool]:
    """Return whether weights of a model with sparse gradients are plain DDP's after each step."""
    models = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        models.append(DDP(nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))))
        if accelerated:
            tuned(models[-1])
    exact = []
    for step in range(STEPS + 4):
        train_step(
            models,
            step,
            lambda model, step: model(torch.tensor([dist.get_rank(), step % 10])).sum(),
        )
        exact.append(equal(*models))
    return exact


def sparse_not_finite(rank: int) -> str:
    model = accelerate_ddp(DDP(nn.Embedding(10, 4, sparse=True)), Comm(non_finite="stop"))
    factor = torch.tensor(torch.inf if dist.get_rank() == rank else 1.0)
    try:
        (model(torch.tensor([dist.get_rank()])) * factor).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def different_options() -> str:
    model = DDP(stack([6, 4]))
    try:
        accelerate_ddp(model, Comm(streams=1 + dist.get_rank()))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    train_step([model], 0)  # the model is as before
    return message


def unused_by_option(values: dict[str, Any]) -> list[bool]:
    """Return whether the option for unused parameters works as DDP's argument does.

    Each rank uses another of two branches. With the option off again, plain DDP's error comes.
    """

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.first if dist.get_rank() == 0 else self.second)(x)

    torch.manual_seed(0)
    two = Two()
    models = [DDP(copy.deepcopy(two), find_unused_parameters=True), DDP(two)]
    accelerate_ddp(models[1], options_of({**values, "find_unused_parameters": True}))
    exact = []
    for step in range(3):
        train_step(models, step)
        exact.append(equal(*models))
    accelerate_ddp(models[1], Comm())
    try:
        for step in range(2):
            train_step(models[1:], step)
    except RuntimeError as error:
        exact.append("find_unused_parameters" in str(error))
    return exact


def made_otherwise(how: str) -> list[bool]:
    """Return whether weights are those of plain DDP after each step, for models in rarer forms.

    The models are made or changed in the way `how`.
    """
    models: list[DDP] = []
    for accelerated in (False, True):
        net, arguments = stack([6, 9, 4]), {}
        if how == "ignored":
            DDP._set_params_and_buffers_to_ignore_for_model(net, ["2.weight"])
        elif how in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view"):
            arguments = {how: True}
        elif how == "buckets":
            arguments = {"bucket_cap_mb": 0.0002}
        models.append(DDP(net, **arguments))
        if accelerated:
            tuned(models[-1])
        if how == "static graph later":
            models[-1]._set_static_graph()
        elif how == "fused optimizer":
            models[-1]._register_fused_optim(torch.optim.SGD, 0.05)
    exact = []
    for step in range(STEPS + 4):
        if how == "fused optimizer":
            for model in models:
                model(batch(step, 6)).pow(2).sum().backward()
        else:
            train_step(models, step)
        exact.append(equal(*models))
    mine = models[1]
    same = ("static_graph", "find_unused_parameters", "gradient_as_bucket_view", "bucket_bytes_cap")
    return [
        *exact,
        all(
            getattr(mine, name) == getattr(models[0], name)
            for name in same
            if name != "bucket_bytes_cap" or how == "buckets"
        ),
    ]
