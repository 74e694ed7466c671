"""Route a module's calls through functions, in place: `wrap_calls(model, step)`.

The functions lie in the slot in which torch keeps the calls of a module that is compiled in place.
What compiles the module stands innermost, whenever it is set (`set_compiled`). Several threads may
call the module at a time. A module that calls itself goes through the functions once, with the
outer call. Copies and pickles of the module leave all of it out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Call = Callable[..., Any]
Step = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]
"""Function of a call, its positional and its keyword arguments; it returns what the module is to
return."""

_SLOT = "_compiled_call_impl"


def wrap_calls(model: nn.Module, step: Step) -> None:
    """Route each call of `model` through `step`, outside the steps that are there."""
    calls = model.__dict__.get(_SLOT)
    if not isinstance(calls, _Calls):
        calls = _Calls(model, calls)
        model.__dict__[_SLOT] = calls
    calls.steps = [*calls.steps, step]


def set_compiled(model: nn.Module, call: Call | None) -> None:
    """Make `call` what a call of `model` runs inside all steps; None: the module as it is."""
    calls = model.__dict__.get(_SLOT)
    if isinstance(calls, _Calls):
        calls.compiled = call
    else:
        model.__dict__[_SLOT] = call


def compiled_call(model: nn.Module) -> Call | None:
    """Return what `set_compiled` has set, or None."""
    calls: Any = model.__dict__.get(_SLOT)
    return calls.compiled if isinstance(calls, _Calls) else calls


class _Calls:
    """The slot's content: the steps of a module, and below them what compiles it."""

    def __init__(self, model: nn.Module, compiled: Call | None) -> None:
        self._model = model
        self.compiled = compiled
        self.steps: list[Step] = []
        self._thread = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the user's code around it is to be one graph with it
            return self._model._call_impl(*args, **kwargs)
        if getattr(self._thread, "inside", False):
            return self._innermost(*args, **kwargs)
        self._thread.inside = True
        try:
            return self._below(self.steps)(*args, **kwargs)
        finally:
            self._thread.inside = False

    def _innermost(self, *args: Any, **kwargs: Any) -> Any:
        return (self.compiled or self._model._call_impl)(*args, **kwargs)

    def _below(self, steps: list[Step]) -> Call:
        if not steps:
            return self._innermost
        *inner, step = steps
        return lambda *args, **kwargs: step(self._below(inner), args, kwargs)
