"""Optimizer-in-backward: update a bucket's parameters as soon as its gradients are averaged.

The user says which backward pass does that: `with step_in_backward(model): loss.backward()`. Any
other backward pass through the model (another network's loss, accumulation) only makes gradients,
as ever. `optimizer.step()` is still called afterwards, and does what is left. It raises
where the step that was taken is not the one it would take: after clipping, a GradScaler, another
backward pass.

The values are those of a step at the end, for optimizers that treat each parameter by itself.
torch's own do, except L-BFGS. Without `fused=True`, torch's optimizers loop over parameters in
Python, which holds the GIL against the backward pass beside it; those of accelerate() do not.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gallery_lib.errors import InputError, RunFailed


class _Step(NamedTuple):
    """Step that one parameter has had; versions are those at the end of the backward pass."""

    parameter: Tensor
    gradient: Tensor | None
    parameter_version: int
    gradient_version: int


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None else tensor._version


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group; a tensor counts as its id and version.

    The version counts because a tensor's value may change in place.
    """
    return [
        {
            name: (id(value), value._version) if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


class EarlySteps:
    """Parts of the optimizer's step, taken in backward passes within `block()`.

    Args:
        optimizer: the optimizer whose step is divided.
        names: parameter names by id, for messages.

    Raises:
        InputError: for an optimizer that is not known to treat each parameter by itself.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: Mapping[int, str] | None = None
    ) -> None:
        kind = type(optimizer)
        if not kind.__module__.startswith(_BY_PARAMETER) or isinstance(optimizer, _COUPLED):
            raise InputError(
                f"a step of {kind.__qualname__} cannot be divided: it is not known to treat each "
                "parameter by itself, as torch.optim's do (but for LBFGS). Leave `optimizer` out, "
                "and its step comes after the backward pass.",
                parameter="optimizer",
            )
        self._optimizer = optimizer
        self._names = names or {}
        self._lock = threading.Lock()
        self._armed = False
        # Parameters that have had their step in the present block.
        self._parameters: dict[int, Tensor] = {}
        self._options: list[dict[str, Any]] = []
        # Steps that optimizer.step() has to confirm next.
        self._pending: list[_Step] = []
        self._broken = ""
        self._set_aside: list[tuple[Tensor, Tensor | None]] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(lambda *_: self._restore()),
        ]

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Context: take steps in the backward pass; see `accelerate_ddp.step_in_backward`."""
        self._restore()
        self._check_nothing_pending("a second step_in_backward() block")
        if self._armed:
            raise InputError(
                "step_in_backward() cannot stand within another such block. "
                "Run that backward pass without it."
            )
        self._armed = True
        try:
            yield
        except BaseException as error:
            if self._disarm():
                self._pending, self._broken = [], f"{type(error).__name__}: {error}"
            raise
        if not self._disarm():
            raise InputError(
                "no backward pass that averages this model's gradients ran within "
                "step_in_backward(). Put `loss.backward()` there, outside no_sync()."
            )

    def _disarm(self) -> bool:
        """End the block; return whether any parameter has had its step in it."""
        with self._lock:  # a thread may be about to take one
            self._armed = False
            parameters, self._parameters = self._parameters, {}
        return bool(parameters)

    def backward_done(self) -> None:
        """Note the versions of parameters and gradients at the end of a backward pass with steps.

        Later changes of either are found by comparing versions.
        """
        if self._armed and not self._pending:
            self._pending = [
                _Step(p, p.grad, _version(p), _version(p.grad)) for p in self._parameters.values()
            ]

    def _check_nothing_pending(self, event: str) -> None:
        """Raise if a step still waits for `optimizer.step()`, or the last block failed halfway."""
        if self._broken:
            raise RunFailed(
                "a backward pass in step_in_backward() failed after some parameters had had their "
                f"step ({self._broken}): these weights are between two steps. Load a checkpoint "
                "into model and optimizer, then call accelerate_ddp() again."
            )
        if self._pending:
            raise InputError(
                f"{event} came before optimizer.step(), which has to follow step_in_backward(): "
                "the weights have moved already. Call optimizer.step() after each such block, or "
                "run loss.backward() without it."
            )

    def take(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Take the step of these parameters, with these gradients.

        Do nothing outside `block()`, and skip parameters of no optimizer.
        """
        own = {id(p): gradient for p, gradient in zip(parameters, gradients, strict=True)}
        with self._lock, torch.no_grad():
            if not self._armed:
                return
            if not self._parameters:
                self._options = _options(self._optimizer)
            part = _partial_optimizer(self._optimizer, own)
            stepped = [parameter for group in part.param_groups for parameter in group["params"]]
            if any(id(parameter) in self._parameters for parameter in stepped):
                raise InputError(
                    "two backward passes ran within step_in_backward(), which takes one step. "
                    "Put only the last one there."
                )
            before = [parameter.grad for parameter in stepped]
            try:
                for parameter in stepped:
                    parameter.grad = own[id(parameter)]
                type(part).step(part)
            finally:  # DDP still needs the parameters' own gradients
                for parameter, gradient in zip(stepped, before, strict=True):
                    parameter.grad = gradient
            self._parameters |= {id(parameter): parameter for parameter in stepped}

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Set gradients to None for parameters that have had their step; optimizers skip those.

        Raise RunFailed where `optimizer.step()` is not the step that was taken.
        """
        self._restore()
        if self._broken:
            self._check_nothing_pending("")
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:
            raise InputError(
                "an optimizer whose steps are taken in the backward pass takes no closure. Leave "
                "`optimizer` out of accelerate_ddp().",
                parameter="optimizer",
            )
        pending, self._pending = self._pending, []
        if not pending:
            return
        if reason := self._contradiction(pending):
            self._broken = reason
            raise RunFailed(
                "the optimizer's step was taken within step_in_backward(), and is not the one "
                f"of this optimizer.step(): {reason}. Do without that, or run loss.backward() "
                "without step_in_backward()."
            )
        self._set_aside = [(step.parameter, step.parameter.grad) for step in pending]
        for step in pending:
            step.parameter.grad = None

    def _contradiction(self, pending: list[_Step]) -> str:
        """Return why `optimizer.step()` would not take the step that was taken; '' if it would."""
        if getattr(self._optimizer, "grad_scale", None) is not None:
            return "a GradScaler scales its gradients"
        if _options(self._optimizer) != self._options:
            return "the optimizer's options (lr, …) have changed since"
        for step in pending:
            grad, name = step.parameter.grad, self._names.get(id(step.parameter), "a parameter")
            if grad is not step.gradient or _version(grad) != step.gradient_version:
                return (
                    f"the gradient of {name} has changed since (clipping, a GradScaler, "
                    "zero_grad() or another backward pass)"
                )
            if _version(step.parameter) != step.parameter_version:
                return f"{name} itself has been changed since"
        return ""

    def _restore(self) -> None:
        """Give parameters back the gradients that were set aside."""
        for parameter, gradient in self._set_aside:
            parameter.grad = gradient
        self._set_aside = []

    def close(self) -> None:
        """Stop taking steps in the backward pass; the optimizer takes its next one alone.

        Raises:
            InputError: where `optimizer.step()` has not come yet.
        """
        if not self._broken:
            self._check_nothing_pending("accelerate_ddp()")
        for hook in self._hooks:
            hook.remove()


_COUPLED = (torch.optim.LBFGS,)
"""Optimizers whose step needs all gradients at once."""
_BY_PARAMETER = ("torch.optim", "gallery_lib.optim.fused_cpu", "gallery_lib.optim.fused")
"""Modules whose optimizers treat each parameter by itself.

Those of this package are what accelerate() makes of torch's.
"""


def _partial_optimizer(
    optimizer: torch.optim.Optimizer, gradients: Mapping[int, Tensor]
) -> torch.optim.Optimizer:
    """Return an optimizer over the parameters whose ids `gradients` has.

    It shares the state of `optimizer`, and has the options of the moment, for instance a changed
    learning rate.
    """
    part = object.__new__(type(optimizer))
    part.__dict__.update(optimizer.__dict__)
    part._optimizer_step_pre_hooks, part._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) in gradients]}
        for group in optimizer.param_groups
    ]
    part.param_groups = [group for group in groups if group["params"]]
    return part
