"""Optimizer-in-backward: update a bucket's parameters as soon as its gradients are averaged.

The user says which backward pass does that: `with step_in_backward(model): loss.backward()`. Any
other backward pass through the model (another network's loss, accumulation) only makes gradients,
as ever. `optimizer.step()` afterwards does what is left, and refuses gradients that were changed
meanwhile: clipping and a GradScaler would come too late.

The values are those of a step at the end, for optimizers that treat each parameter by itself.
torch's own do, except L-BFGS. Without `fused=True`, torch's optimizers loop over parameters in
Python, which holds the GIL against the backward pass beside it; those of accelerate() do not.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gallery_lib.errors import InputError, RunFailed

_COUPLED = (torch.optim.LBFGS,)  # their step needs all gradients at once
_BY_PARAMETER = ("torch.optim", "gallery_lib.optim.fused_cpu")
"""Modules whose optimizers treat each parameter by itself.

Those of this package are what accelerate() makes of torch's.
"""


class EarlySteps:
    """Parts of the step of `optimizer`, taken in backward passes within `block()`.

    Raises:
        InputError: for an optimizer that is not known to treat each parameter by itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        if not kind.__module__.startswith(_BY_PARAMETER) or isinstance(optimizer, _COUPLED):
            raise InputError(
                f"a step of {kind.__qualname__} cannot be divided: it is not known to treat each "
                "parameter by itself, as torch.optim's do (but for LBFGS). Leave `optimizer` out, "
                "and its step comes after the backward pass.",
                parameter="optimizer",
            )
        self._optimizer = optimizer
        self._lock = threading.Lock()
        self._armed = False
        # Parameters that have had their step, their gradients, and the versions of these.
        self._taken: list[tuple[Tensor, Tensor, int]] = []
        # Parameters that have had their step in the present block, by id.
        self._stepped: dict[int, Tensor] = {}
        optimizer.register_step_pre_hook(self._confirm)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Context: take steps in the backward pass; see `accelerate_ddp.step_in_backward`."""
        if self._armed:
            raise InputError("step_in_backward() cannot stand within another such block.")
        self._confirm(self._optimizer)
        self._armed, self._stepped = True, {}
        try:
            yield
        except BaseException as error:
            self._taken = []
            if self._stepped:
                raise RunFailed(
                    "a backward pass in step_in_backward() failed after some parameters had had "
                    f"their step ({type(error).__name__}: {error}): these weights are between two "
                    "steps. Load a checkpoint into model and optimizer."
                ) from error
            raise
        finally:
            with self._lock:  # a thread may be about to take one
                self._armed = False
        if not self._stepped:
            raise InputError(
                "no backward pass that averages this model's gradients ran within "
                "step_in_backward(). Put `loss.backward()` there, outside no_sync()."
            )

    def backward_done(self) -> None:
        """Note the gradients that have been used; DDP has put the means into them by now."""
        if self._armed:
            stepped = [p for p in self._stepped.values() if p.grad is not None]
            self._taken = [(p, p.grad, p.grad._version) for p in stepped]  # type: ignore[misc, union-attr]

    def _confirm(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Drop the gradients that have been used, before the optimizer's own step, or a new one."""
        taken, self._taken = self._taken, []
        scaled = getattr(optimizer, "grad_scale", None) is not None
        for parameter, gradient, version in taken:
            if scaled or parameter.grad is not gradient or gradient._version != version:
                raise RunFailed(
                    "a gradient was changed after step_in_backward(), which had taken the step "
                    "(clipping, a GradScaler). Run loss.backward() without it, and load a "
                    "checkpoint: the weights have had that step."
                )
            parameter.grad = None

    def take(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Take the step of these parameters, with these gradients.

        Do nothing outside `block()`, and skip parameters of no optimizer.
        """
        own = {id(p): gradient for p, gradient in zip(parameters, gradients, strict=True)}
        with self._lock, torch.no_grad():
            if not self._armed:
                return
            part = _partial_optimizer(self._optimizer, own)
            stepped = [parameter for group in part.param_groups for parameter in group["params"]]
            if any(id(parameter) in self._stepped for parameter in stepped):
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
            self._stepped |= {id(parameter): parameter for parameter in stepped}


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
