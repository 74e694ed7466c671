"""Route a module's calls through a function, in place and outermost: `go_through(model, step)`.

The function uses the slot in which torch keeps the calls of a module that is compiled in place.
Compilation, tuning and the announcement of the first call also use the slot. What they put there,
even later, stays below the function. Copies and pickles of the module leave it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Function of a call, its positional and its keyword arguments; it returns what the module is to
return."""

_SLOT = "_compiled_call_impl"


def go_through(model: nn.Module, step: Step) -> None:
    """Route each call of `model` through `step`."""
    inner: Any = model.__dict__.get(_SLOT)

    def outermost(*args: Any, **kwargs: Any) -> Any:
        nonlocal inner
        # The user compiles the code around the module, which is to be one graph with it.
        if torch.compiler.is_compiling():
            return (inner or model._call_impl)(*args, **kwargs)
        slots = model.__dict__
        if inner is None:
            slots.pop(_SLOT, None)
        else:
            slots[_SLOT] = inner
        try:
            return step(inner or model._call_impl, args, kwargs)  # type: ignore[arg-type]
        finally:  # this call may have changed the function below
            inner = slots.get(_SLOT)
            slots[_SLOT] = outermost

    model.__dict__[_SLOT] = outermost
