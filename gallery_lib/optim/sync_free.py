"""Adam, AdamW, SGD, RMSprop, RAdam and LAMB whose step never waits for the device.

That holds with gradient scaling or without. The classes are drop-in: arguments and `state_dict()`
are those of torch's classes, from which they are derived. So a checkpoint of either is continued by
the other. LAMB, which torch does not have, has a state dict like AdamW's. The step takes scale and
overflow flag of this package's GradScaler or torch's on the device, as only some of torch's fused
steps do. Whether a step is skipped is decided there. The work is `kernels.optimizer_step`: own
kernels on CUDA, plain torch on the CPU.

Not offered are amsgrad, dampening, differentiable, Adam's weight_decay (AdamW's is), and 16-bit,
complex or sparse parameters. They are refused before anything is changed. An optimizer that
`adoption.accelerate_optimizer` has made sync-free leaves such groups to torch's class instead.
`foreach`, `fused` and `capturable` choose among torch's implementations and change nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.optimizer_reference import Hyperparameters
from gallery_lib.optim.sync_free_step import SyncFree


def _adam(group: dict[str, Any], lr: float) -> Hyperparameters:
    beta1, beta2 = group["betas"]
    return Hyperparameters(
        lr=lr,
        weight_decay=group["weight_decay"],
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        decoupled_weight_decay=group.get("decoupled_weight_decay", False),
        maximize=group["maximize"],
    )


class Adam(SyncFree, torch.optim.Adam):
    """Adam as AdamW's rule without weight decay.

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.sync_free import Adam
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = Adam(model.parameters(), lr=1e-3)
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
    """

    _rule = "adamw"
    _unsupported = (*SyncFree._unsupported, "weight_decay")

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class AdamW(SyncFree, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).

    Example:
        >>> import torch
        >>> from gallery_lib.optim.sync_free import AdamW
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
    """

    _rule = "adamw"

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class RAdam(SyncFree, torch.optim.RAdam):
    """RAdam (Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020).

    Example:
        >>> import torch
        >>> from gallery_lib.optim.sync_free import RAdam
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = RAdam(model.parameters(), lr=1e-3)
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
    """

    _rule = "radam"

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class LAMB(SyncFree):
    """LAMB with bias correction and φ(x) = x.

    You et al., "Large Batch Optimization for Deep Learning", 2020.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.sync_free import LAMB
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = LAMB(model.parameters(), lr=1e-3)
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
    """

    _rule = "lamb"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
            },
        )

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class SGD(SyncFree, torch.optim.SGD):
    """Stochastic gradient descent, with Nesterov's or heavy-ball momentum, or without.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.sync_free import SGD
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
    """

    _rule = "sgd"

    def _counts_steps(self) -> bool:
        return False

    def _state_names(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("momentum_buffer" if group["momentum"] else None,)

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return Hyperparameters(
            lr=lr,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
        )


class RMSprop(SyncFree, torch.optim.RMSprop):
    """RMSprop in torch's variant, with momentum and centered.

    Tieleman and Hinton, Coursera lecture 6.5, 2012.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.sync_free import RMSprop
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = RMSprop(model.parameters(), lr=1e-3)
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
    """

    _rule = "rmsprop"

    def _state_names(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return (
            "square_avg",
            "momentum_buffer" if group["momentum"] > 0 else None,
            "grad_avg" if group["centered"] else None,
        )

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return Hyperparameters(
            lr=lr,
            weight_decay=group["weight_decay"],
            beta2=group["alpha"],
            eps=group["eps"],
            momentum=group["momentum"],
            maximize=group["maximize"],
        )
