"""Odd models while ways of averaging take turns: their parameters, gradients and options."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.config import Comm
from on_ranks.models import (
    DDP,
    STEPS,
    Branches,
    batch,
    equal,
    message_of,
    options_of,
    stack,
    train_step,
    tuned,
)


class Odd(nn.Module):
    """Model with parameters of every type and form that DDP takes."""

    def __init__(self) -> None:
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
        self.table = nn.Embedding(10, 4, sparse=True)
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


def odd_parameters(values: dict[str, Any]) -> dict[str, float]:
    """Return how far each mean gradient is from plain DDP's, over a few steps, by parameter.

    The unit is the largest gradient.
    """
    models = [DDP(Odd()), accelerate_ddp(DDP(Odd()), options_of(values))]
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
    return equal(*models, gradients=True) and bool(models[0].module[0].weight.grad.isfinite().all())


def sparse_while_tuning() -> bool:
    """Return whether weights of a model with sparse gradients are plain DDP's after each step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    models = [DDP(net), DDP(copy.deepcopy(net))]
    tuned(models[1])
    exact = True
    for step in range(STEPS + 4):
        train_step(
            models,
            step,
            lambda model, step: model(torch.tensor([dist.get_rank(), step % 10])).sum(),
        )
        exact &= equal(*models)
    return exact


def sparse_not_finite(rank: int) -> str:
    model = accelerate_ddp(DDP(nn.Embedding(10, 4, sparse=True)), Comm(non_finite="stop"))
    factor = torch.tensor(torch.inf if dist.get_rank() == rank else 1.0)
    return message_of(lambda: (model(torch.tensor([dist.get_rank()])) * factor).sum().backward())


def unused_by_option(values: dict[str, Any]) -> list[bool]:
    """Return whether the option for unused parameters works as DDP's argument does.

    Each rank uses another of two branches. With the option off again, plain DDP's error comes.
    """
    torch.manual_seed(0)
    net = Branches()
    models = [DDP(copy.deepcopy(net), find_unused_parameters=True), DDP(net)]
    accelerate_ddp(models[1], options_of({**values, "find_unused_parameters": True}))
    exact = []

    def loss(model: nn.Module, step: int) -> Tensor:
        return model(batch(step, 7)).pow(2).sum()

    for step in range(3):
        train_step(models, step, loss)
        exact.append(equal(*models))
    accelerate_ddp(models[1], Comm())
    error = message_of(lambda: [train_step(models[1:], step, loss) for step in range(2)])
    return [*exact, "find_unused_parameters" in error]


def made_otherwise(how: str) -> bool:
    """Return whether weights are those of plain DDP after each step, for models in rarer forms."""
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
    exact = True
    for step in range(STEPS + 4):
        if how == "fused optimizer":
            for model in models:
                model(batch(step, 6)).pow(2).sum().backward()
        else:
            train_step(models, step)
        exact &= equal(*models)
    same = ["static_graph", "find_unused_parameters", "gradient_as_bucket_view"]
    same += ["bucket_bytes_cap"] * (how == "buckets")
    return exact and all(getattr(models[1], name) == getattr(models[0], name) for name in same)
