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
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gallery_lib.errors import InputError
from gallery_lib.kernels.optimizer_step import Hyperparameters, PackedStep, optimizer_step
from gallery_lib.kernels.runtime import operators, usage
from gallery_lib.kernels.runtime.launch import is_dense, same_layout
from gallery_lib.optim import torchs_step


def _hyperparameters(group: Mapping[str, Any], lr: float) -> Hyperparameters:
    beta1, beta2 = group.get("betas", (0.0, group.get("alpha", 0.0)))
    names = ("weight_decay", "eps", "momentum", "nesterov", "decoupled_weight_decay", "maximize")
    options = {name: group[name] for name in names if name in group}
    return Hyperparameters(lr, beta1=beta1, beta2=beta2, **options)


_DTYPE = attrgetter("dtype")


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

    def _takes(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        """Return whether the kernels can take the group's step with the present gradients."""
        names = [name for name in self._state_names(group) if name is not None]
        return (
            self.offers(group)
            and len(set(map(id, parameters))) == len(parameters)
            and all(self._suits(p, names) for p in parameters)
        )

    def _suits(self, p: Tensor, names: Sequence[str]) -> bool:
        grad, state = p.grad, self.state.get(p) or {}
        assert grad is not None
        tensors = [grad, *(state[name] for name in names if state.get(name) is not None)]
        return (
            p.dtype in (torch.float32, torch.float64)
            and all(
                t.layout is torch.strided and t.dtype is p.dtype and t.device == p.device
                for t in tensors
            )
            and (not p.numel() or grad.data_ptr() != p.data_ptr())
            and (not p.is_cuda or (is_dense(p) and all(same_layout(p, t) for t in tensors[1:])))
        )

    def _initialised(self, parameter: Tensor, names: Iterable[str | None]) -> dict[str, Any]:
        """Return a parameter's state, with missing entries created.

        The step count lies on the parameter's device, also when it comes from a checkpoint.
        """
        if not self._counts_steps and not any(names):
            return {}  # as in torch, SGD without momentum keeps nothing
        state = self.state[parameter]
        if self._counts_steps:
            step = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32)
            if state.get("step") is not step or step.device != parameter.device:
                state["step"] = step.to(parameter.device)
        for name in names:
            if name is not None and state.get(name) is None:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    @torch._disable_dynamo  # below a compiled caller, too: Dynamo loses states of several groups
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the closure's loss, or None without a closure."""
        loss = torchs_step.loss_of(closure)
        kept: dict[int, Any] = vars(self).setdefault("_kept", {})
        work = []
        for number, group in enumerate(self.param_groups):
            parameters = [p for p in group["params"] if p.grad is not None]
            seen: Any = self._seen(group, parameters) if number in kept else None
            if seen is None or seen[2] != kept[number][0]:
                kept.pop(number, None)
            taken = number in kept or self._takes(group, parameters)
            work.append((number, group, parameters, seen, taken))
        for number, group, parameters, seen, taken in work:
            if not taken:
                self._leave_to_torch(group, parameters)
            elif number in kept:
                self._step_again(group, seen, kept[number][1])
            else:
                for device, dtype in dict.fromkeys((p.device, p.dtype) for p in parameters):
                    alike = [p for p in parameters if p.device == device and p.dtype == dtype]
                    self._step_alike(group, alike, device)
                self._keep(number, group, parameters)
        return loss

    def _seen(self, group: dict[str, Any], parameters: list[Tensor]) -> Any:
        """Return tensors in columns, the gradients' addresses, and what packed launches depend on.

        None: a state is missing, or the kernels may not be launched directly.
        """
        direct = self.offers(group) and _get_current_dispatch_mode() is None and parameters
        if not direct or not (parameters[0].is_cuda and usage.kernels_run(parameters[0].device)):
            return None
        states: list[Any] = [self.state.get(p) or {} for p in parameters]
        names = [*filter(None, self._state_names(group)), *["step"] * self._counts_steps]
        columns: list[list[Any]] = [parameters, [p.grad for p in parameters]]
        columns += [[state.get(name) for state in states] for name in names]
        try:
            addresses: list[Any] = [list(map(Tensor.data_ptr, column)) for column in columns]
            strides = [list(map(Tensor.stride, column)) for column in columns]
        except (TypeError, RuntimeError):  # None, or a tensor that is not strided
            return None
        gradients, addresses[1] = addresses[1], list(map(Tensor.size, parameters))
        shared = any(w == g != 0 for w, g in zip(addresses[0], gradients, strict=True))
        if shared or any(map(Tensor.is_neg, columns[1])):
            return None
        dtypes = [list(map(_DTYPE, column)) for column in columns]
        return columns, gradients, [names, addresses, strides, dtypes]

    def _keep(self, number: int, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Keep the launches of a step that was taken, for the next one, where they can be used."""
        seen, kinds = self._seen(group, parameters), {(p.device, p.dtype) for p in parameters}
        if seen is None or len(kinds) > 1 or parameters[0].dtype is not torch.float32:
            return
        weights, gradients, *states = seen[0]
        if not all(map(same_layout, weights, gradients)):
            return
        steps = states.pop() if self._counts_steps else None
        given: list[Any] = [name and states.pop(0) for name in self._state_names(group)]
        columns = [weights, gradients, *given, *[None] * (3 - len(given)), steps]
        vars(self)["_kept"][number] = seen[2], PackedStep(self._rule, columns)

    def _step_again(self, group: dict[str, Any], seen: Any, packed: PackedStep) -> None:
        """Take a group's step by the launches of the one before."""
        (weights, _, *changed), gradients, _ = seen
        rate, scalars = self._scalars(group, weights[0].device)
        packed.take(_hyperparameters(group, rate), scalars, gradients)
        operators.count_kernel("optimizer_step_")
        torch.autograd.graph.increment_version([t for c in (weights, *changed) for t in c])

    def _leave_to_torch(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Have torch's class take a group's step.

        With scale and flag, the host waits for them, as torch's scaler does.
        """
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
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

    def _scalars(self, group: dict[str, Any], device: torch.device) -> tuple[float, list[Any]]:
        """Return the learning rate; scale, flag and a rate in a tensor, on the device."""
        lr = group["lr"]
        on_device = isinstance(lr, Tensor) and lr.is_cuda  # reading it would wait
        scalars = [getattr(self, name, None) for name in ("grad_scale", "found_inf")]
        return 0.0 if on_device else float(lr), [
            None if one is None else one.to(device, torch.float32, non_blocking=True)
            for one in (*scalars, lr if on_device else None)
        ]

    def _step_alike(
        self, group: dict[str, Any], parameters: list[Tensor], device: torch.device
    ) -> None:
        names, (rate, scalars) = self._state_names(group), self._scalars(group, device)
        states = [self._initialised(parameter, names) for parameter in parameters]
        optimizer_step(
            self._rule,
            parameters,
            [p.grad.resolve_neg() for p in parameters if p.grad is not None],
            [None if name is None else [state[name] for state in states] for name in names],
            _hyperparameters(group, rate),
            steps=[state["step"] for state in states] if self._counts_steps else (),
            gradient_scale=scalars[0],
            found_inf=scalars[1],
            learning_rate=scalars[2],
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

    def _takes(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        if not super()._takes(group, parameters):  # there is no class of torch's to leave it to
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
