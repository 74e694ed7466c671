"""Strategy by which a DistributedDataParallel averages gradients: which one it has, how to switch.

The model object stays. Only its C++ reducer is rebuilt (`rebuild.py`). Options that DDP itself does
not have need a communication hook as well (`reducer.py`). A communication hook of the user's takes
precedence for good, whether it is registered before or after.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch.distributed as dist
from torch import nn

from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.comm.rebuild import DDP
from gallery_lib.comm.reducer import GradientReducer
from gallery_lib.comm.watch import Watch, watch_of
from gallery_lib.config import Comm
from gallery_lib.system.standard_error import tell


def needs_hook(options: Comm) -> bool:
    """Return whether `options` need a communication hook, beyond what DDP's constructor takes."""
    return (
        options.hierarchical
        or options.streams > 1
        or options.wire != "exact"
        or options.non_finite != "ignore"
    )


def use_strategy(model: DDP, options: Comm, early_steps: EarlySteps | None = None) -> None:
    """Have `model` average gradients as `options` say. A collective call between two steps.

    The options must be known to go together and to suit the model.
    """
    watch = watched(model)
    if watch.reducer is not None:
        watch.reducer.close()
        watch.reducer = None
    watch.rebuild(options)
    if not needs_hook(options) and early_steps is None:
        return
    reducer = GradientReducer(
        model.module, options, model.device, _join_is_active(model), early_steps
    )
    dist._register_comm_hook(model.reducer, None, reducer.take)
    watch.reducer = reducer
    reducer.end_with(model)


def _join_is_active(model: DDP) -> Callable[[], bool]:
    """Return a function that tells whether DDP's join context is active.

    In that context ranks without batches stand by. The function does not keep the model alive.
    """
    reference = weakref.ref(model)

    def is_active() -> bool:
        alive = reference()
        return alive is not None and alive._join_config.enable

    return is_active


def gradient_reducer(model: nn.Module) -> GradientReducer | None:
    """Return our communication hook of `model`; None where DDP averages by itself."""
    watch = watch_of(model)
    return None if watch is None else watch.reducer


def watched(model: DDP) -> Watch:
    """Return the watch over `model`, and create it where there is none.

    From then on the watch notices a communication hook that the user registers.
    """
    watch = watch_of(model)
    if watch is None:
        watch = Watch(model)
        reference = weakref.ref(model)
        watch.before_own_hook = lambda: _give_way(reference())
    return watch


def _give_way(model: DDP | None) -> None:
    """Leave averaging to a communication hook that the user is about to register."""
    watch = watch_of(model)
    if model is None or watch is None or (watch.reducer is None and watch.before_forward is None):
        return
    stop_watching_steps(model)
    use_strategy(model, Comm())
    say(
        f"{type(model.module).__name__}: gradients are averaged by the model's own communication "
        "hook (register_comm_hook) from now on, not as config.comm says."
    )


def stop_watching_steps(model: DDP) -> None:
    """End a tuner's turns, if there is one; the model keeps its present strategy."""
    if (watch := watch_of(model)) is not None:
        watch.before_forward = None


def say(text: str) -> None:
    """Print `text` to standard error on rank 0."""
    if dist.get_rank() == 0:
        tell(text)
