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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.optimizer_reference import Hyperparameters
from gallery_lib.kernels.optimizer_step import optimizer_step
from gallery_lib.kernels.runtime.tensor_lists import is_dense
from gallery_lib.optim import torchs_step


def clip_factor(norm: Tensor, max_norm: float, gradient_scale: Tensor | None = None) -> Tensor:
    """Return the factor that brings the gradients' norm to at most `max_norm`.

    The formula is that of `clip_grad_norm_`. All stays on the device.

    Args:
        norm: norm of the gradients as they are.
        max_norm: the most that the norm may be.
        gradient_scale: the scale of `norm`, if it is scaled.
    """
    if gradient_scale is not None:
        norm = norm / gradient_scale
    return (max_norm / (norm + 1e-6)).clamp(max=1.0).float()


class SyncFree(torch.optim.Optimizer, ABC):
    """Base class: gathers each group's tensors and makes one call for a group, device and dtype."""

    # GradScaler then sets `grad_scale` and `found_inf` for the time of the step.
    _step_supports_amp_scaling = True
    _rule: str
    _unsupported: tuple[str, ...] = ("amsgrad", "dampening", "differentiable")
    clip_factor: Tensor | None
    learning_rates: list[Tensor] | None
    step_was_skipped: Tensor | None
    grad_scale: Tensor | None
    found_inf: Tensor | None
    _skipped: dict[torch.device, Tensor]
    # If true, torch's class takes groups that are not offered, and nothing is refused.
    _leaves_to_torch: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._complete()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_leaves_to_torch": self._leaves_to_torch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore state after a copy or `load_state_dict`; check what its groups ask for."""
        super().__setstate__(state)
        self._complete()

    @classmethod
    def offers(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether the class takes these arguments, or refuses one of them."""
        return not any(arguments.get(name) for name in cls._unsupported)

    def _complete(self) -> None:
        defaults = ("clip_factor", None), ("learning_rates", None), ("step_was_skipped", None)
        for name, value in (*defaults, ("_skipped", {}), ("_leaves_to_torch", False)):
            self.__dict__.setdefault(name, value)
        for group in () if self._leaves_to_torch else self.param_groups:
            if (reason := self._option_refused(group)) is not None:
                raise InputError(reason)

    def _option_refused(self, group: dict[str, Any]) -> str | None:
        for name in self._unsupported:
            if group.get(name):
                kind = type(self).__name__
                return (
                    f"{kind} of gallery_lib does not offer {name}={group[name]!r}. "
                    "Use torch.optim's."
                )
        return None

    def _refused(self, group: dict[str, Any], parameters: list[Tensor]) -> str | None:
        """Return why this class cannot take a group's step with the present gradients, or None."""
        if (reason := self._option_refused(group)) is not None:
            return reason
        if len(set(map(id, parameters))) < len(parameters):
            return "a parameter stands twice in its group. List it once."
        names = [name for name in self._state_names(group) if name is not None]
        for p in parameters:
            grad = p.grad
            assert grad is not None
            dense = grad.layout is torch.strided
            if (
                p.dtype not in (torch.float32, torch.float64)
                or not dense
                or grad.dtype is not p.dtype
            ):
                return (
                    f"{type(self).__name__} of gallery_lib steps fp32 and fp64 parameters with "
                    f"dense gradients; this one is {p.dtype} with {'dense' if dense else 'sparse'} "
                    f"gradients in {grad.dtype}. "
                    "Keep weights in fp32: autocast casts what is computed in 16 bits."
                )
            if p.shape != grad.shape or p.device != grad.device:
                return (
                    f"a parameter {tuple(p.shape)} on {p.device} has a gradient "
                    f"{tuple(grad.shape)} on {grad.device}. "
                    "Move the model before its gradients are made."
                )
            if p.numel() and grad.data_ptr() == p.data_ptr():
                return (
                    f"the gradient of a parameter {tuple(p.shape)} is the memory of the "
                    "parameter itself. Clone it."
                )
            if p.is_cuda and not is_dense(p):
                return (
                    f"a parameter {tuple(p.shape)} has gaps (strides {p.stride()}). "
                    "Make it contiguous."
                )
            state = self.state.get(p) or {}
            for name in names:
                there = state.get(name)
                if there is not None and (there.dtype is not p.dtype or there.device != p.device):
                    return (
                        f"the state {name} is {there.dtype} on {there.device} and its parameter "
                        f"{p.dtype} on {p.device}. "
                        "Load the optimizer's state after the model was moved."
                    )
        return None

    def skipped_steps(self) -> int:
        """Return the number of steps skipped since this object was made; waits for the device."""
        return max((int(count.item()) for count in self._skipped.values()), default=0)

    @abstractmethod
    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        """Return the hyper-parameters of the rule that a parameter group asks for."""

    def _state_names(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        """Return the keys of a parameter's state, in the rule's order; None for one not kept."""
        return ("exp_avg", "exp_avg_sq")

    def _counts_steps(self) -> bool:
        return True

    def _initialised(self, parameter: Tensor, names: tuple[str | None, ...]) -> dict[str, Any]:
        """Return a parameter's state, with missing entries created.

        The step count lies on the parameter's device, also when it comes from a checkpoint.
        """
        if not self._counts_steps() and not any(names):
            return {}  # as in torch, SGD without momentum keeps nothing
        state = self.state[parameter]
        if self._counts_steps():
            step = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32)
            if state.get("step") is not step or step.device != parameter.device:
                state["step"] = step.to(parameter.device)
        for name in names:
            if name is not None and state.get(name) is None:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the closure's loss, or None without a closure.

        `clip_factor`, a scalar on the device, multiplies the gradients when it is set.
        `learning_rates`, an fp32 scalar on the device for each group, replace the groups' own when
        set. Afterwards `step_was_skipped` is the overflow flag on the device, or None when none was
        given.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        work = [
            (group, [p for p in group["params"] if p.grad is not None])
            for group in self.param_groups
        ]
        reasons = [self._refused(group, parameters) for group, parameters in work]
        if not self._leaves_to_torch and any(reasons):
            raise InputError(next(reason for reason in reasons if reason is not None))
        self.step_was_skipped = None if found_inf is None else found_inf.detach().clone()
        counted: set[torch.device] = set()
        for number, (group, parameters) in enumerate(work):
            rates = self.learning_rates or ()
            # A group may have been added since.
            lr = rates[number] if number < len(rates) else group["lr"]
            if reasons[number] is not None:
                self._leave_to_torch({**group, "lr": lr}, parameters, scale, found_inf)
                continue
            for device, dtype in dict.fromkeys(
                (parameter.device, parameter.dtype) for parameter in parameters
            ):
                chosen = [p for p in parameters if p.device == device and p.dtype == dtype]
                self._step_alike(
                    group, chosen, device, lr, scale, found_inf, count_skips=device not in counted
                )
                counted.add(device)
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
        factor = 1.0 if scale is None else 1.0 / float(scale)
        if self.clip_factor is not None:
            factor *= float(self.clip_factor)
        for p in parameters if factor != 1.0 else ():
            assert p.grad is not None
            p.grad.mul_(factor)
        if self.learning_rates is not None and isinstance(group["lr"], Tensor):
            group = {**group, "lr": float(group["lr"])}
        self.grad_scale, self.found_inf = None, None
        try:
            torchs_step.take(self, super().step, [group])
        finally:
            self.grad_scale, self.found_inf = scale, found_inf

    def _step_alike(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        device: torch.device,
        lr: Tensor | float,
        scale: Tensor | None,
        found_inf: Tensor | None,
        *,
        count_skips: bool,
    ) -> None:
        names = self._state_names(group)
        states = [self._initialised(parameter, names) for parameter in parameters]
        exact_on_host = (
            isinstance(lr, Tensor) and lr.device.type == "cpu" and lr.dtype is torch.float64
        )
        on_device = (
            isinstance(lr, Tensor)
            and (lr.device == device or lr.device.type != "cpu")
            and not exact_on_host
        )
        if device not in self._skipped:
            self._skipped[device] = torch.zeros((), dtype=torch.int64, device=device)

        def here(scalar: Tensor | None) -> Tensor | None:
            return (
                None
                if scalar is None
                else scalar.to(device=device, dtype=torch.float32, non_blocking=True)
            )

        optimizer_step(
            self._rule,
            parameters,
            [p.grad.resolve_neg() for p in parameters if p.grad is not None],
            [None if name is None else [state[name] for state in states] for name in names],
            self._hyperparameters(group, 0.0 if on_device else float(lr)),
            steps=[state["step"] for state in states] if self._counts_steps() else (),
            skipped=self._skipped[device] if count_skips else None,
            gradient_scale=here(scale),
            found_inf=here(found_inf),
            clip_factor=here(self.clip_factor),
            learning_rate=here(lr) if on_device else None,  # type: ignore[arg-type]
        )


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
    """

    _rule = "adamw"
    _unsupported = (*SyncFree._unsupported, "weight_decay")

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class AdamW(SyncFree, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019)."""

    _rule = "adamw"

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class RAdam(SyncFree, torch.optim.RAdam):
    """RAdam (Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020)."""

    _rule = "radam"

    def _hyperparameters(self, group: dict[str, Any], lr: float) -> Hyperparameters:
        return _adam(group, lr)


class LAMB(SyncFree):
    """LAMB with bias correction and φ(x) = x.

    You et al., "Large Batch Optimization for Deep Learning", 2020.
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
    """Stochastic gradient descent, with Nesterov's or heavy-ball momentum, or without."""

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
