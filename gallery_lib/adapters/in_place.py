"""What the callbacks share: compilation of a model in place, inside another library's loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gallery_lib import memory
from gallery_lib.comm import process_group
from gallery_lib.compiler import recompiles
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.calls import compiled_call
from gallery_lib.config import Compiler
from gallery_lib.system.processes import tell


def compile_in_place(model: nn.Module, device: torch.device) -> None:
    """Set `model` up to be compiled for `device` at its first call, and print what was set up.

    A model that is compiled already stays as it is. For the whole process, the allocator is set to
    keep large blocks, and repeated recompilation is reported.
    """
    allocator = memory.keep_large_blocks()
    name = type(model).__name__
    if compiled_call(model) is not None:
        say(f"{name} is compiled already, and stays as it is; allocator: {allocator}")
        return
    compilation = compile_model(model, Compiler(), device)
    recompiles.watch(say)
    say(f"{name}: {compilation}; allocator: {allocator}")


def called_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts with weights that a module whose own `forward` nobody calls may call."""
    for part in module.children():
        if type(part).forward is nn.Module.forward:  # ModuleList and ModuleDict
            yield from called_parts(part)
        elif next(part.parameters(), None) is not None:
            yield part


def say(line: str) -> None:
    """Print one line on rank 0's standard error."""
    if process_group.rank() == 0:
        tell(f"gallery_lib: {line}")
