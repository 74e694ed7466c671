"""Base of the optimizers whose step never waits for the device: `SyncFree`.

It keeps states and counts, and makes one call of `kernels.optimizer_step` for each group, device
and dtype. Groups that are not offered are refused, or left to torch's class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.optimizer_reference import Hyperparameters
from gallery_lib.kernels.optimizer_step import optimizer_step
from gallery_lib.kernels.runtime.tensor_lists import is_dense
from gallery_lib.optim import torchs_step

_ATTRIBUTES_TRACED_SINCE = "2.15"
"""Dynamo of torch 2.11 raises where a step sets an attribute of its optimizer; releases between
them are treated alike. The step then runs uncompiled, below a compiled caller too."""


def _traceable(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step, uncompiled on releases of torch that cannot trace it."""
    return step if torch.__version__ >= _ATTRIBUTES_TRACED_SINCE else torch._disable_dynamo(step)


class SyncFree(torchs_step.PickledAsTorchs, ABC):
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
            if (error := option_error(type(self), group, self._unsupported)) is not None:
                raise error

    def _input_error(self, group: dict[str, Any], parameters: list[Tensor]) -> InputError | None:
        """Return why this class cannot take a group's step with the present gradients, or None."""
        kind = type(self)
        if (error := option_error(kind, group, self._unsupported)) is not None:
            return error
        if len(set(map(id, parameters))) < len(parameters):
            return InputError(
                "a parameter stands twice in its group. List it once.", parameter="params"
            )
        names = [name for name in self._state_names(group) if name is not None]
        for p in parameters:
            state = self.state.get(p) or {}
            there = {name: state[name] for name in names if state.get(name) is not None}
            if (error := parameter_error(kind, p, there)) is not None:
                return error
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

    @_traceable
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
        errors = [self._input_error(group, parameters) for group, parameters in work]
        if not self._leaves_to_torch and any(errors):
            raise next(error for error in errors if error is not None)
        self.step_was_skipped = None if found_inf is None else found_inf.detach().clone()
        counted: set[torch.device] = set()
        for number, (group, parameters) in enumerate(work):
            rates = self.learning_rates or ()
            # A group may have been added since.
            lr = rates[number] if number < len(rates) else group["lr"]
            if errors[number] is not None:
                self._leave_to_torch({**group, "lr": lr}, parameters, scale, found_inf)
                continue
            for device, dtype in dict.fromkeys(
                (parameter.device, parameter.dtype) for parameter in parameters
            ):
                subset = [p for p in parameters if p.device == device and p.dtype == dtype]
                self._step_alike(
                    group, subset, device, lr, scale, found_inf, count_skips=device not in counted
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


# --------------------------------------------------------------------------------------------------
# What optimizers that never wait for the device do not take: options, parameters, gradients.
#
# Each function returns the error for what is refused, or None.


def option_error(
    optimizer: type[torch.optim.Optimizer], group: Mapping[str, Any], unsupported: Sequence[str]
) -> InputError | None:
    """Return the error for the first of the `unsupported` options that a group sets."""
    for name in unsupported:
        if group.get(name):
            return InputError(
                f"{optimizer.__name__} of gallery_lib does not offer {name}={group[name]!r}. "
                "Use torch.optim's.",
                parameter=name,
            )
    return None


def parameter_error(
    optimizer: type[torch.optim.Optimizer], p: Tensor, state: Mapping[str, Tensor]
) -> InputError | None:
    """Return the error for a parameter that does not suit its gradient, state or the kernels."""
    reason = _gradient_reason(optimizer, p) or _state_reason(p, state)
    return None if reason is None else InputError(reason, parameter="params")


def _gradient_reason(optimizer: type[torch.optim.Optimizer], p: Tensor) -> str | None:
    grad = p.grad
    assert grad is not None
    dense = grad.layout is torch.strided
    if p.dtype not in (torch.float32, torch.float64) or not dense or grad.dtype is not p.dtype:
        return (
            f"{optimizer.__name__} of gallery_lib steps fp32 and fp64 parameters with "
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
        return f"a parameter {tuple(p.shape)} has gaps (strides {p.stride()}). Make it contiguous."
    return None


def _state_reason(p: Tensor, state: Mapping[str, Tensor]) -> str | None:
    for name, tensor in state.items():
        if tensor.dtype is not p.dtype or tensor.device != p.device:
            return (
                f"the state {name} is {tensor.dtype} on {tensor.device} and its parameter "
                f"{p.dtype} on {p.device}. "
                "Load the optimizer's state after the model was moved."
            )
    return None
