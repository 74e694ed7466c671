"""Compile what calls of modules do, in place: `compile_calls(modules, backend=…, options=…)`.

It is `Module.compile`, and works where that compiles nothing:

- Dynamo skips functions in torch's own files. A module whose `forward` is torch's (Sequential,
  TransformerEncoderLayer) has no other, and torch 2.11 leaves such a call as it is, in silence.
- Dynamo counts compilations by function, not by model, and stops at eight. Models of one class
  share a function. All models whose `forward` is torch's share a single one. The ninth in a process
  is left as it is, and so are all after it.

Here the function around the calls belongs to these modules alone, and so does the count.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def compile_calls(modules: Iterable[nn.Module], **options: Any) -> None:
    """Compile the calls of `modules` in place, with torch.compile's options.

    Modules that are alike share what is compiled. They share nothing with modules of another call.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        # Also counts the functions that are called after a graph break; torch 2.11 cannot.
        options["isolate_recompiles"] = True
    compiled = torch.compile(_function_of_its_own(), **options)
    for module in modules:
        module._compiled_call_impl = functools.partial(compiled, module._call_impl)  # type: ignore[assignment]


def _call(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)


def _function_of_its_own() -> types.FunctionType:
    """Return a copy of `_call` with a code object of its own, by which Dynamo counts."""
    return types.FunctionType(_call.__code__.replace(), globals(), _call.__name__)
