"""Compile anew when weights are frozen or unfrozen, on releases of torch that do not notice.

The compiled graph of torch 2.11 has gradients for the weights that were trained at its first call.
A layer that is unfrozen later would get none, in silence. torch 2.15 compiles another graph by
itself; releases between them are treated as 2.11 is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gallery_lib.compiler.calls import go_through

_NOTICED_SINCE = "2.15"


def compile_anew_when_frozen(model: nn.Module) -> None:
    """Route each call of `model` through a look at which of its weights are trained."""
    if torch.__version__ >= _NOTICED_SINCE:
        return
    parameters = list(model.parameters())
    before: list[bool] | None = None

    def step(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal before
        now = [p.requires_grad for p in parameters]
        if before not in (None, now):
            torch._dynamo.reset()
        before = now
        return call(*args, **kwargs)

    go_through(model, step)
