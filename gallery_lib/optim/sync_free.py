"""Adam, AdamW, SGD, RMSprop, RAdam and LAMB whose step never waits for the device.

That holds with gradient scaling or without. The classes are drop-in: arguments and `state_dict()`
are those of torch's classes, from which they are derived. So a checkpoint of either is continued by
the other. LAMB, which torch does not have, has a state dict like AdamW's. The step takes scale and
overflow flag of this package's GradScaler or torch's on the device, as only some of torch's fused
steps do. Whether a step is skipped is decided there. The work is `kernels.optimizer_step`: own
kernels on CUDA, plain torch on the CPU.

torch's class takes the step of a group with amsgrad, dampening, differentiable, Adam's weight_decay
(AdamW's is offered), or with 16-bit, complex or sparse parameters; LAMB refuses such a group.
`foreach`, `fused` and `capturable` choose among torch's implementations and change nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.optimizer_step import Hyperparameters, optimizer_step
from gallery_lib.kernels.runtime.launch import is_dense, layouts, same_layout
from gallery_lib.optim import torchs_step


def _hyperparameters(group: Mapping[str, Any], lr: float) -> Hyperparameters:
    beta1, beta2 = group.get("betas", (0.0, group.get("alpha", 0.0)))
    names = ("weight_decay", "eps", "momentum", "nesterov", "decoupled_weight_decay", "maximize")
    options = {name: group[name] for name in names if name in group}
    return Hyperparameters(lr, beta1=beta1, beta2=beta2, **options)


Group = dict[str, Any]
Column = list[Tensor]
_DTYPE, _DEVICE, _LAYOUT = map(attrgetter, ("dtype", "device", "layout"))
_DTYPES, _STRIDED = {torch.float32, torch.float64}, {torch.strided}


def _suit(parameters: Column, columns: list[Column]) -> bool:
    """Return whether the kernels take these parameters with their gradients and states.

    Whole columns are looked at, the gradients first: a step has hundreds of tensors.
    """
    dtypes, devices = list(map(_DTYPE, parameters)), list(map(_DEVICE, parameters))
    if not _DTYPES.issuperset(dtypes):
        return False
    for column in columns:
        if not _STRIDED.issuperset(map(_LAYOUT, column)):
            return False
        if list(map(_DTYPE, column)) != dtypes or list(map(_DEVICE, column)) != devices:
            return False
    addresses = [list(map(Tensor.data_ptr, column)) for column in (parameters, columns[0])]
    if any(weight == gradient != 0 for weight, gradient in zip(*addresses, strict=True)):
        return False
    if not any(device.type == "cuda" for device in set(devices)):
        return True
    of_weights = layouts(parameters)
    return all(map(is_dense, parameters)) and all(
        layouts(column) == of_weights or all(map(same_layout, parameters, column))
        for column in columns[1:]
    )


class SyncFree(torchs_step.PickledAsTorchs):
    """Base class: gathers each group's tensors and makes one call for a group, device and dtype."""

    # GradScaler then sets `grad_scale` and `found_inf` for the time of the step.
    _step_supports_amp_scaling = True
    _rule: str
    _counts_steps = True
    _unsupported: tuple[str, ...] = ("amsgrad", "dampening", "differentiable")

    @classmethod
    def offers(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether the class takes these arguments itself."""
        return not any(arguments.get(name) for name in cls._unsupported)

    def _state_names(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        """Return the keys of a parameter's state, in the rule's order; None for one not kept."""
        return ("exp_avg", "exp_avg_sq")

    def _takes(self, group: Group, parameters: Column, gradients: Column) -> bool:
        """Return whether the kernels can take the group's step with these gradients."""
        if not self.offers(group) or len(set(map(id, parameters))) < len(parameters):
            return False
        columns = [gradients]
        for name in self._state_names(group):
            if name is not None:
                found = [(self.state.get(p) or {}).get(name) for p in parameters]
                columns.append(
                    [p if t is None else t for p, t in zip(parameters, found, strict=True)]
                )
        return _suit(parameters, columns)

    def _initialised(
        self, parameters: list[Tensor], names: Sequence[str | None], device: torch.device
    ) -> list[dict[str, Any]]:
        """Return the states of parameters on `device`, with missing entries created.

        The step count lies on the parameter's device, also when it comes from a checkpoint.
        """
        if not self._counts_steps and not any(names):
            return []  # as in torch, SGD without momentum keeps nothing
        states = [self.state[p] for p in parameters]
        for p, state in zip(parameters, states, strict=True):
            if self._counts_steps:
                step = state.get("step", 0.0)
                here = isinstance(step, Tensor) and step.device == device
                if not here or step.dtype is not torch.float32:
                    state["step"] = torch.as_tensor(step, dtype=torch.float32).to(device)
            for name in names:
                if name is not None and state.get(name) is None:
                    state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return states

    @torch._disable_dynamo  # below a compiled caller, too: Dynamo loses states of several groups
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the closure's loss, or None without a closure."""
        loss = torchs_step.loss_of(closure)
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        work = []
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in parameters]
            taken = self._takes(group, parameters, gradients)
            work.append((group, parameters, gradients, taken))
        for group, parameters, gradients, taken in work:
            if not taken:
                self._leave_to_torch(group, parameters, scale, found_inf)
                continue
            kinds = list(zip(map(_DEVICE, parameters), map(_DTYPE, parameters), strict=True))
            for kind in dict.fromkeys(kinds):
                alike, of_alike = (
                    [t for t, k in zip(column, kinds, strict=True) if k == kind]
                    for column in (parameters, gradients)
                )
                self._step_alike(group, alike, of_alike, kind[0], scale, found_inf)
        return loss

    def _leave_to_torch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """Have torch's class take a group's step.

        With scale and flag, the host waits for them, as torch's scaler does.
        """
        if found_inf is not None and bool(found_inf):
            return
        for p in parameters if scale is not None else ():
            assert scale is not None and p.grad is not None
            p.grad.mul_(1.0 / float(scale))
        self.grad_scale, self.found_inf = None, None
        try:
            torchs_step.take(self, super().step, [group])
        finally:
            self.grad_scale, self.found_inf = scale, found_inf

    def _step_alike(
        self,
        group: dict[str, Any],
        parameters: Column,
        gradients: Column,
        device: torch.device,
        scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        def here(scalar: Tensor | None) -> Tensor | None:
            if scalar is None:
                return None
            return scalar.to(device=device, dtype=torch.float32, non_blocking=True)

        names, lr = self._state_names(group), group["lr"]
        states = self._initialised(parameters, names, device)
        on_device = isinstance(lr, Tensor) and lr.is_cuda  # reading it would wait
        optimizer_step(
            self._rule,
            parameters,
            list(map(Tensor.resolve_neg, gradients)),
            [None if name is None else [state[name] for state in states] for name in names],
            _hyperparameters(group, 0.0 if on_device else float(lr)),
            steps=[state["step"] for state in states] if self._counts_steps else (),
            gradient_scale=here(scale),
            found_inf=here(found_inf),
            learning_rate=here(lr) if on_device else None,
        )


class Adam(SyncFree, torch.optim.Adam):
    """Adam (Kingma and Ba, 2015) as AdamW's rule without weight decay."""

    _rule = "adamw"
    _unsupported = (*SyncFree._unsupported, "weight_decay")


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


class RAdam(SyncFree, torch.optim.RAdam):
    """RAdam (Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020)."""

    _rule = "radam"


class LAMB(SyncFree):
    """LAMB (You et al., 2020) with bias correction and φ(x) = x, for fp32 and fp64 parameters."""

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
        options = {"eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {"lr": lr, "betas": betas, **options})

    def _takes(self, group: Group, parameters: Column, gradients: Column) -> bool:
        if not super()._takes(group, parameters, gradients):  # no class of torch's could
            raise InputError(
                "LAMB steps distinct fp32 and fp64 parameters without gaps, whose gradients are "
                "dense and in memory of their own.",
                parameter="params",
            )
        return True


class SGD(SyncFree, torch.optim.SGD):
    """Stochastic gradient descent, with Nesterov's or heavy-ball momentum, or without."""

    _rule = "sgd"
    _counts_steps = False

    def _state_names(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("momentum_buffer" if group["momentum"] else None,)


class RMSprop(SyncFree, torch.optim.RMSprop):
    """RMSprop (Tieleman and Hinton, 2012) in torch's variant, with momentum and centered."""

    _rule = "rmsprop"

    def _state_names(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return (
            "square_avg",
            "momentum_buffer" if group["momentum"] > 0 else None,
            "grad_avg" if group["centered"] else None,
        )
