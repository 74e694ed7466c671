"""A small training for every optimizer: ours, and the one that it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gallery_lib.optim import sync_free
from gallery_lib.optim.sync_free import SyncFree

STEPS = 200
OVERFLOW_AT = (0, 3, 50, 51, 120)


@dataclass(frozen=True)
class Pair:
    """An optimizer of ours, and the arguments that it shares with torch's of the same name.

    LAMB's other optimizer is timm's, which knows nothing of scaling.
    """

    name: str
    arguments: dict[str, Any]

    def ours(self, parameters: Any) -> SyncFree:
        return getattr(sync_free, self.name)(parameters, **self.arguments)

    def theirs(self, parameters: Any) -> torch.optim.Optimizer:
        if self.name != "LAMB":
            return getattr(torch.optim, self.name)(parameters, **self.arguments)
        from timm.optim import Lamb  # imported for a second

        return Lamb(parameters, **self.arguments, max_grad_norm=None, always_adapt=True)


PAIRS = (
    Pair("AdamW", {"lr": 3e-3, "weight_decay": 1e-2}),
    Pair("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
    Pair("RMSprop", {"lr": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 1e-4}),
    Pair("RAdam", {"lr": 3e-3, "weight_decay": 1e-2}),
    Pair("LAMB", {"lr": 1e-2, "weight_decay": 1e-2}),
)
ADAM = Pair("Adam", {"lr": 3e-3, "betas": (0.9, 0.98)})
BY_NAME = {pair.name: pair for pair in (*PAIRS, ADAM)}
SCALING = {"init_scale": 2.0**10, "growth_interval": 20}


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(dtype)


def batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(16, 12, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, inputs[:, :4].argmax(1)


def warmup(update: int) -> float:
    """Return the factor of an update's learning rate; every update has another one."""
    return min((update + 1) / 20, 1.0) * 0.99**update


def losses(
    net: nn.Sequential,
    optimizer: torch.optim.Optimizer,
    steps: range = range(STEPS),
    scaler: torch.amp.GradScaler | None = None,
    overflow_at: tuple[int, ...] = (),
    take: Callable[[], None] | None = None,
) -> list[float]:
    """Train, and return the loss of each step.

    At the steps in `overflow_at` one gradient becomes infinite. `take` updates in place of scaler
    and optimizer.
    """
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    like, result = next(net.parameters()), []
    for step in steps:
        inputs, labels = (part.to(like.device) for part in batch(step, like.dtype))
        loss = nn.functional.cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step in overflow_at:
            net[0].weight.grad[0, 0] = torch.inf
        if take is None:
            scaler.step(optimizer)
            scaler.update()
        else:
            take()
        result.append(loss.detach())  # to read it would wait for the device
    return torch.stack(result).tolist()


class NothingWaits(TorchDispatchMode):
    """Mode in which an operator raises if the host would have to wait for the device's value."""

    WAITING = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select",
               "allclose")  # fmt: skip

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.WAITING, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))
