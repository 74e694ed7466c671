"""Notice what happens to a DistributedDataParallel, without a hook of ours among the user's.

DDP tells its logger when a forward pass that is to be averaged begins, and when a communication
hook is registered. `Watch` takes that logger's place and passes all calls on. It also keeps all we
know of the model. DDP leaves its logger out of pickles and deep copies, so a copy is a plain DDP.
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
    """Proxy of `model.logger` that reports forward passes and communication hooks.

    - `reducer` is our communication hook, None while DDP averages by itself.
    - `before_forward` is called before a forward pass that is to be averaged.
    - `before_own_hook` is called when the user registers a communication hook.
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
        """Rebuild the model's reducer (see `rebuild.rebuild`) and keep watching."""
        model = self._model()
        assert model is not None
        rebuild(model, self._made, options)
        self._logger = model.logger
        model.logger = self  # type: ignore[assignment]

    def set_runtime_stats_and_log(self) -> None:
        """Run `before_forward`, then DDP's own method.

        DDP calls it at the beginning of a forward pass with gradients and synchronization.
        """
        if self.before_forward is not None:
            self.before_forward()
        self._logger.set_runtime_stats_and_log()  # type: ignore[union-attr]

    def _set_comm_hook_name(self, name: str) -> None:
        """Run `before_own_hook`, then DDP's own method.

        DDP calls it just before it registers a communication hook with its reducer.
        """
        if self.before_own_hook is not None:
            self.before_own_hook()
        self._logger._set_comm_hook_name(name)  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_logger"), name)


DISTRIBUTION = "_gallery_distribution"
"""Name of the class attribute that holds the DDP of a model that accelerate() returned (`ddp.py`).

Only models on several processes have it.
"""


def inside(model: Any) -> Any:
    """Return the DistributedDataParallel through which `model` is called.

    Return `model` itself if it is one, or if there is none.
    """
    distribution = getattr(type(model), DISTRIBUTION, None)
    return model if distribution is None else distribution.ddp


def watch_of(model: object) -> Watch | None:
    """Return the watch over `model`, or None."""
    logger = getattr(inside(model), "logger", None)
    return logger if isinstance(logger, Watch) else None
