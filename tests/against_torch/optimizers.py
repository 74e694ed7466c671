"""Optimizers and learning-rate schedules, made as users make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from gallery_lib.optim import fused_cpu

EPS = 1e-3
"""Epsilon of the adaptive optimizers.

It keeps a rounding error of a gradient near zero from becoming a step of the learning rate's size.
"""


class OwnSGD(torch.optim.SGD):
    """A user's subclass of SGD with a step of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        value = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.999)
        return value


def _groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return the parameters in two groups, the second with a learning rate of its own."""
    first, *others = parameters
    second = [{"params": others, "lr": 0.02}] if others else []
    return [{"params": [first]}, *second]


OPTIMIZERS: dict[str, Callable[[Any, Any], torch.optim.Optimizer]] = {
    "sgd": lambda o, p: o.SGD(p, lr=0.1),
    "momentum": lambda o, p: o.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": lambda o, p: o.SGD(p, lr=0.05, momentum=0.9, dampening=0.1),
    "sgd_groups": lambda o, p: o.SGD(_groups(p), lr=0.05, momentum=0.5),
    "adam": lambda o, p: o.Adam(p, lr=0.01, eps=EPS),
    "amsgrad": lambda o, p: o.Adam(p, lr=0.01, eps=EPS, amsgrad=True),
    "adamw": lambda o, p: o.AdamW(p, lr=0.01, eps=EPS),
    "adamw_groups": lambda o, p: o.AdamW(_groups(p), lr=0.01, eps=EPS),
    "adamw_tensor_rate": lambda o, p: o.AdamW(p, lr=torch.tensor(0.01), eps=EPS, foreach=False),
    "rmsprop": lambda o, p: o.RMSprop(p, lr=0.005, eps=EPS),
    "radam": lambda o, p: o.RAdam(p, lr=0.01, eps=EPS),
    "maximize": lambda o, p: o.AdamW(p, lr=0.01, eps=EPS, maximize=True),
    "adagrad": lambda o, p: torch.optim.Adagrad(p, lr=0.05, eps=EPS),
    "own_sgd": lambda o, p: OwnSGD(p, lr=0.05),
    "sparse_adam": lambda o, p: torch.optim.SparseAdam(list(p), lr=0.01, eps=EPS),
    "lbfgs": lambda o, p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}
IN_ONE_PASS = tuple(
    name for name in OPTIMIZERS if name not in ("adagrad", "own_sgd", "sparse_adam", "lbfgs")
)
"""Names of the optimizers whose class gallery_lib.optim.fused_cpu has as well."""

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "one_cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, total_steps=200, cycle_momentum=False
    ),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 / (1 + step)
    ),
    "chained": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        milestones=[2],
    ),
}


def optimizer_of(name: str, model: nn.Module, ours: bool = False) -> torch.optim.Optimizer:
    """Return the optimizer `name` of the model's trained parameters.

    With `ours`, use the product's class where there is one.
    """
    module = fused_cpu if ours and name in IN_ONE_PASS else torch.optim
    return OPTIMIZERS[name](module, [p for p in model.parameters() if p.requires_grad])
