"""Cases of optimizers: whole steps on scaled gradients, and the statistics of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels import gradient_statistics
from gallery_lib.optim import sync_free
from kernel_cases.case import Build, Call, Case


def _shapes(architecture: str, small: bool) -> list[torch.Size]:
    with torch.device("meta"):
        if architecture == "ResNet-50":
            from torchvision.models import resnet50

            model = resnet50()
        else:
            import timm

            model = timm.create_model("vit_small_patch16_224")
    return [parameter.shape for parameter in model.parameters()][: 12 if small else None]


def _parameters(architecture: str, device: torch.device, small: bool) -> list[Tensor]:
    torch.manual_seed(0)
    parameters = [
        torch.randn(shape, device=device) * 0.05 for shape in _shapes(architecture, small)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return parameters


def _lamb(parameters: list[Tensor], **arguments: Any) -> torch.optim.Optimizer:
    from timm.optim import Lamb  # torch has none

    return Lamb(parameters, max_grad_norm=None, **arguments)


@dataclass(frozen=True)
class Rivals:
    """Our form of an optimizer and torch's, and what each is built with."""

    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    arguments: dict[str, Any]  # of both
    torchs_arguments: dict[str, Any]
    bytes_per_element: int  # 4 of them to look for infinities
    aim: float


OPTIMIZERS = {
    "AdamW": Rivals(
        sync_free.AdamW, torch.optim.AdamW, {"weight_decay": 0.01}, {"fused": True}, 32, 1.2
    ),
    "SGD": Rivals(
        sync_free.SGD,
        torch.optim.SGD,
        {"lr": 0.01, "momentum": 0.9, "nesterov": True},
        {"fused": True},
        24,
        1.2,
    ),
    "RMSprop": Rivals(
        sync_free.RMSprop,
        torch.optim.RMSprop,
        {"lr": 0.01, "momentum": 0.9},
        {"foreach": True},
        32,
        3.0,
    ),
    "RAdam": Rivals(sync_free.RAdam, torch.optim.RAdam, {"lr": 0.01}, {"foreach": True}, 32, 3.0),
    "LAMB": Rivals(sync_free.LAMB, _lamb, {"lr": 0.01, "weight_decay": 0.01}, {}, 44, 1.2),
}


def optimizer_step(name: str, architecture: str) -> Build:
    """Return the case of a whole optimizer step on scaled gradients.

    The baseline is torch's fused or foreach form with GradScaler (LAMB: timm's).
    """
    rivals = OPTIMIZERS[name]

    def build(device: torch.device, small: bool) -> Case:
        mine, theirs, third = (_parameters(architecture, device, small) for _ in range(3))
        optimizer = rivals.ours(mine, **rivals.arguments)
        torchs = rivals.torchs(theirs, **rivals.arguments, **rivals.torchs_arguments)
        scale = torch.ones((), device=device)

        def ours() -> list[Tensor]:
            found_inf = gradient_statistics.gradient_statistics(
                [parameter.grad for parameter in mine]
            )[1]
            optimizer.grad_scale, optimizer.found_inf = scale, found_inf
            optimizer.step()
            return mine

        def with_scaler(
            parameters: list[Tensor], optimizer: torch.optim.Optimizer, step: Callable[..., Any]
        ) -> Call:
            scaler = torch.amp.GradScaler(device.type, init_scale=1.0, growth_interval=10**9)
            scaler.scale(scale)

            def call() -> list[Tensor]:
                step(scaler, optimizer)
                scaler.update()
                return parameters

            return call

        def compiled() -> Call:
            own_optimizer = rivals.torchs(third, **rivals.arguments, capturable=True)
            compiled_step = torch.compile(own_optimizer.step)

            def step(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
                scaler.unscale_(optimizer)
                compiled_step()

            return with_scaler(third, own_optimizer, step)

        # These optimizers are capturable; compiling one takes half a minute.
        can_compile = name in ("AdamW", "RMSprop", "RAdam") and architecture == "ResNet-50"
        bytes_moved = rivals.bytes_per_element * sum(parameter.numel() for parameter in mine)
        eager = with_scaler(theirs, torchs, lambda scaler, optimizer: scaler.step(optimizer))
        return Case(ours, eager, compiled if can_compile else None, bytes_moved, rivals.aim)

    return build


def statistics(device: torch.device, small: bool) -> Case:
    """Return the case of norm and overflow flag of ResNet-50's gradients.

    The baseline is torch's norm and the scaler's check.
    """
    gradients = [parameter.grad for parameter in _parameters("ResNet-50", device, small)]
    one = torch.ones((), device=device)

    def eager() -> tuple[Tensor, Tensor]:
        found_inf = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, one)
        return torch.nn.utils.get_total_norm(gradients), found_inf

    def ours() -> tuple[Tensor, Tensor]:
        return gradient_statistics.gradient_statistics(gradients)

    def compiled() -> Call:
        function = torch.compile(gradient_statistics.reference)
        return lambda: function(gradients)

    return Case(ours, eager, compiled, 4 * sum(gradient.numel() for gradient in gradients), None)
