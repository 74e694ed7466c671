"""Change a user's optimizer in place to its fastest form: `accelerate_optimizer(optimizer)`.

The object stays: its groups, states, defaults and hooks, and the schedulers that hold it. On the
CPU it takes steps in one pass. On CUDA, Adam and AdamW are told to be torch's fused form, and the
others are sync-free where own kernels run; with a GradScaler, all are. One pass and the sync-free
form are classes derived from the optimizer's own. They take torch's own step for whatever they are
not written for.

Some optimizers are left as they are, with the reason. These are classes that are not torch.optim's
own, implementations that the user has chosen (`foreach`, `fused`, `capturable`, `differentiable`),
and a `step` that somebody has replaced.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.kernels.runtime import usage
from gallery_lib.optim import fused_cpu, sync_free
from gallery_lib.optim.sync_free import SyncFree

_NAMES = ("Adam", "AdamW", "SGD", "RMSprop", "RAdam")


def _forms(module: Any) -> dict[type, Any]:
    return {getattr(torch.optim, name): getattr(module, name) for name in _NAMES}


_ONE_PASS: dict[type, type[fused_cpu.OnePass]] = _forms(fused_cpu)
_SYNC_FREE: dict[type, type[SyncFree]] = _forms(sync_free)
_FUSED = (torch.optim.Adam, torch.optim.AdamW)
"""Classes whose fused form takes all that the class takes. SGD's takes no sparse gradients.

On the CPU it is wrong where a gradient's layout is not its weight's; on CUDA torch refuses that.
"""


def accelerate_optimizer(optimizer: torch.optim.Optimizer, *, scaled: bool = True) -> str:
    """Change `optimizer` to its fastest implementation; return one line that says which.

    If it stays torch's, the line says why. Existing states are moved to their parameter's device.
    Call it once the model is where it trains; a second call changes nothing.

    Args:
        optimizer: one of torch.optim's classes, or another, which stays as it is.
        scaled: whether a GradScaler scales the loss (fp16). Without one no step waits for the
            device, and torch's fused form takes less of the host than the sync-free one.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.adoption import accelerate_optimizer
        >>> optimizer = torch.optim.AdamW(torch.nn.Linear(4, 1).parameters())
        >>> print(accelerate_optimizer(optimizer))
        AdamW takes ...
    """
    name = type(optimizer).__name__
    _bring_states(optimizer)
    if isinstance(optimizer, fused_cpu.OnePass | SyncFree):
        return f"{name} is accelerated already ({type(optimizer).__module__})."
    form, text = _choose(optimizer, scaled)
    if form is None:
        return f"{name} stays as it is: {text}."
    if form is type(optimizer):
        _fuse(optimizer)
        return f"{name} {text}."
    _adopt(optimizer, form)
    return f"{name} {text}; what it cannot take is left to torch's own step."


def release_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer its class of torch.optim back; torch's fused form, on CUDA, stays."""
    if isinstance(optimizer, fused_cpu.OnePass | SyncFree):
        kinds = [k for k in type(optimizer).__mro__ if k in _ONE_PASS or k in _SYNC_FREE]
        if kinds:
            _adopt(optimizer, kinds[0])


def _choose(
    optimizer: torch.optim.Optimizer, scaled: bool
) -> tuple[type[torch.optim.Optimizer] | None, str]:
    """Return the class of the fastest form and what to say of it; None with the reason.

    The optimizer's own class stands for torch's fused form.
    """
    kind, groups = type(optimizer), optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    where = ", ".join(sorted({str(p.device) for p in parameters}))
    device_types, dtypes = ({p.device.type for p in parameters}, {p.dtype for p in parameters})
    if getattr(torch.optim, kind.__name__, None) is not kind:
        return None, f"{kind.__module__}.{kind.__qualname__} is no class of torch.optim"
    if device_types not in ({"cpu"}, {"cuda"}):
        return None, f"its parameters are on {where or 'no device'}"
    if kind not in _SYNC_FREE:  # one pass has the same classes
        return None, "there is no faster form of it here"
    for group in (optimizer.defaults, *groups):
        if (form := _choice(group)) is not None:
            return None, f"{form} was chosen"
    if not _step_is_torchs(optimizer):
        return None, "its `step` was replaced"
    on_cpu, reason = device_types == {"cpu"}, _reason_against_sync_free(optimizer)
    # Where a test uses our operators on the CPU, it takes the sync-free form, as CUDA does.
    if reason is None and (on_cpu or scaled or kind not in _FUSED):
        return _SYNC_FREE[kind], f"is sync-free on {where}"
    if not on_cpu and kind in _FUSED and dtypes <= {torch.float32, torch.float64}:
        return kind, f"takes torch's fused form on {where}"
    if not on_cpu or not cpu_optimizers.available():
        return None, "there is no C++ compiler" if on_cpu else str(reason)
    if torch.float32 in dtypes and any(map(fused_cpu.takes_options, groups)):
        return _ONE_PASS[kind], "takes its steps in one pass over memory on the CPU"
    return None, "one pass over memory takes fp32 parameters, and numbers as options"


def _choice(group: dict[str, Any]) -> str | None:
    """Return which of torch's implementations a group asks for, as `option=value`, or None."""
    for name in ("foreach", "fused"):
        if group.get(name) is not None:
            return f"{name}={group[name]}"
    forms = ("capturable", "differentiable")
    return next((f"{name}=True" for name in forms if group.get(name)), None)


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Have torch's class take fused steps, as its constructor does with `fused=True`.

    Its state dict stays that of an optimizer without: it may be loaded on a CPU, and there torch's
    fused form is wrong for some layouts.
    """
    _set_fused(optimizer)
    optimizer.register_load_state_dict_post_hook(_set_fused)
    optimizer.register_state_dict_post_hook(
        lambda _, state: {
            **state,
            "param_groups": [{**group, "fused": None} for group in state["param_groups"]],
        }
    )


def _set_fused(optimizer: torch.optim.Optimizer) -> None:
    optimizer.defaults["fused"] = True
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    for group in optimizer.param_groups:
        group["fused"] = True
        for p in group["params"]:
            if "step" in (state := optimizer.state.get(p) or {}):
                state["step"] = torch.as_tensor(state["step"], dtype=torch.float32).to(p.device)


def _reason_against_sync_free(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why own kernels do not take the optimizer's steps; None if they do."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for device in dict.fromkeys(p.device for p in parameters):
        if (reason := usage.reason_not_used(device)) is not None:
            return f"own kernels do not run: {reason}"
    if not all(p.dtype is torch.float32 for p in parameters):
        return "own kernels step fp32 parameters"
    if not all(map(_SYNC_FREE[type(optimizer)].offers, optimizer.param_groups)):
        return "the sync-free form does not offer its options"
    return None


def _step_is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `step` is the class's own, or a scheduler's wrapper of it.

    That wrapper only notes that the step was called.
    """
    own = vars(optimizer).get("step")
    if own is None:
        return True
    marked = getattr(own, "_wrapped_by_lr_sched", False)
    return bool(marked) and getattr(own, "__wrapped__", None) is type(optimizer).step


def _adopt(optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer]) -> None:
    """Change the optimizer's class, and rebuild a scheduler's wrapper around the new `step`.

    The old wrapper holds the old class's step.
    """
    watched = vars(optimizer).pop("step", None) is not None
    optimizer.__class__ = kind
    optimizer._patch_step_function()  # puts hooks around the class's step, once for each class
    if watched:
        optimizer.step = _watched(optimizer)  # type: ignore[method-assign]


def _watched(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """Return `step` wrapped with the note that torch's schedulers look for.

    The schedulers themselves make the wrapper in this way.
    """
    owner, function = weakref.ref(optimizer), type(optimizer).step

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        stepped = owner()
        assert stepped is not None
        stepped._opt_called = True  # type: ignore[attr-defined]
        return function(stepped, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _bring_states(optimizer: torch.optim.Optimizer) -> None:
    """Move states to their parameters, as `load_state_dict` does.

    Step counts stay where they are counted.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            state: dict[str, Any] = optimizer.state.get(p) or {}
            for name, value in list(state.items()):
                counted = name == "step" and not (group.get("capturable") or group.get("fused"))
                if isinstance(value, Tensor) and value.device != p.device and not counted:
                    state[name] = value.to(p.device)
