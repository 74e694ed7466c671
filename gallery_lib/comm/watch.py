"""Notice what happens to a DistributedDataParallel, without a hook of ours among the user's.

DDP tells its logger when a forward pass that is to be averaged begins, and when a communication
hook is registered. `Watch` stands in that logger's place and passes all calls on. It also keeps all
we know of the model: DDP leaves its logger out of pickles and deep copies, so a copy is a plain DDP.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gallery_lib.comm.rebuild import DDP, AsMade, rebuild
from gallery_lib.config import Comm

if TYPE_CHECKING:
    from gallery_lib.comm.reducer import GradientReducer


class Watch:
    """Stands in the place of `model.logger`.

    `reducer`: our communication hook, None while DDP averages by itself. `before_forward`: called before
    a forward pass that is to be averaged. `before_own_hook`: called when the user registers a
    communication hook.
    """

    def __init__(self, model: DDP) -> None:
        self._model = weakref.ref(model)
        self._logger = model.logger
        self._made = AsMade.of(model)
        self.reducer: GradientReducer | None = None
        self.before_forward: Callable[[], None] | None = None
        self.before_own_hook: Callable[[], None] | None = None
        model.logger = self  # type: ignore[assignment]

    def rebuild(self, options: Comm) -> None:
        """See `rebuild.rebuild`; the watch goes on."""
        model = self._model()
        assert model is not None
        rebuild(model, self._made, options)
        self._logger = model.logger
        model.logger = self  # type: ignore[assignment]

    def set_runtime_stats_and_log(self) -> None:
        """DDP calls this at the beginning of a forward pass with gradients and synchronization."""
        if self.before_forward is not None:
            self.before_forward()
        self._logger.set_runtime_stats_and_log()  # type: ignore[union-attr]

    def _set_comm_hook_name(self, name: str) -> None:
        """DDP calls this just before it registers a communication hook with its reducer."""
        if self.before_own_hook is not None:
            self.before_own_hook()
        self._logger._set_comm_hook_name(name)  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_logger"), name)


DISTRIBUTION = "_gallery_distribution"
"""Attribute of the class of what accelerate() returns on several processes; that holds the model's DDP (`ddp.py`)."""


def inside(model: Any) -> Any:
    """Return the DistributedDataParallel through which `model` is called; `model` itself where it is one, or is none."""
    distribution = getattr(type(model), DISTRIBUTION, None)
    return model if distribution is None else distribution.ddp


def watch_of(model: object) -> Watch | None:
    """Return the watch over `model`, if there is one."""
    logger = getattr(inside(model), "logger", None)
    return logger if isinstance(logger, Watch) else None
