"""Compile what a call of a module does, in place: `compile_call(module, backend=…, options=…)`.

It is `Module.compile`, and works where that compiles nothing. Dynamo skips functions in torch's own
files. A module whose `forward` is torch's (Sequential, TransformerEncoderLayer) has no other, and
torch 2.11 leaves such a call as it is, in silence. Newer releases put a function around it; for
older ones this file does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def compile_call(module: nn.Module, **options: Any) -> None:
    """Compile the calls of `module` in place, with torch.compile's options."""
    module.compile(**options)
    if _would_be_skipped(module):
        call = module._call_impl

        def in_this_file(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        compiled: Any = torch.compile(in_this_file, **options)
        module._compiled_call_impl = compiled


def _would_be_skipped(module: nn.Module) -> bool:
    from torch._dynamo import trace_rules
    from torch._dynamo.eval_frame import OptimizedModule

    if hasattr(OptimizedModule, "_should_wrap_module_call_impl"):
        return False
    return bool(trace_rules.check(module.forward))
