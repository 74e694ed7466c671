"""Stand-ins for `gallery_lib.compiler.backend._compile` in tests that are not of the compiler."""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery_lib.compiler.backend import compile_calls
from gallery_lib.compiler.calls import set_compiled


def leave_eager(model: nn.Module, *options: Any) -> str:
    set_compiled(model, model._call_impl)
    return "nothing: a test without a compiler"


def capture_graphs(model: nn.Module, *options: Any) -> str:
    """Have torch's compiler `cudagraphs` capture the model, whose operators are eager's."""
    compile_calls(model, backend="cudagraphs")
    return "cudagraphs"
