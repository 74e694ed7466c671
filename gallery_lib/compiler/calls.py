"""`go_through(model, step)`: have the calls of a module go through a function, in place and outermost.

It uses the slot in which torch keeps an in-place compiled module's calls. What is put there by compilation, tuning
and the announcement of the first call, also later, stays below it. Copies and pickles of the module leave it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Gets the call, and the positional and the keyword arguments of one; returns what the module is to return."""

_SLOT = "_compiled_call_impl"


def go_through(model: nn.Module, step: Step) -> None:
    """Have each call of `model` go through `step`."""
    inner: Any = model.__dict__.get(_SLOT)

    def outermost(*args: Any, **kwargs: Any) -> Any:
        nonlocal inner
        if torch.compiler.is_compiling():  # the user compiles what is around the module: one graph
            return (inner or model._call_impl)(*args, **kwargs)
        slots = model.__dict__
        if inner is None:
            slots.pop(_SLOT, None)
        else:
            slots[_SLOT] = inner
        try:
            return step(inner or model._call_impl, args, kwargs)  # type: ignore[arg-type]
        finally:  # what is below may have changed with this call
            inner = slots.get(_SLOT)
            slots[_SLOT] = outermost

    model.__dict__[_SLOT] = outermost
