"""Compile blocks that a model repeats, such as a transformer's layers, only once.

Each block is a region of its own, compiled in place as the whole model otherwise is. The compiler
finds that the second block's code is the first one's, since weights are inputs to it. The parts
around the blocks are compiled module by module. A single operator there runs eagerly. Compilation
and start-up then take the time of one block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gallery_lib.compiler.in_place import compile_calls

FEWEST_BLOCKS = 3
LEAST_PART = 0.5
"""Least share of the model's parameters in repeated blocks; with less, the model is compiled as
one."""
_SPARE_RECOMPILATIONS = 8


@dataclass(frozen=True)
class Regions:
    """Regions compiled by themselves: groups of blocks that are alike, and modules around them."""

    groups: tuple[tuple[nn.Module, ...], ...]
    around: tuple[nn.Module, ...]

    @property
    def blocks(self) -> int:
        """Return the number of blocks in all groups."""
        return sum(len(group) for group in self.groups)


def _signature(module: nn.Module) -> list[object]:
    """Return what two modules must have in common to be alike.

    Whether the compiler agrees shows when they first run.
    """
    parts = [(name, type(submodule)) for name, submodule in module.named_modules()]
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [
        parts,
        [(name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors],
    ]


def _alike(module: nn.Module) -> bool:
    blocks = list(module.children())
    if (
        not isinstance(module, nn.ModuleList | nn.Sequential)
        or len(blocks) < FEWEST_BLOCKS
        or not any(blocks[0].children())
    ):
        return False
    first = _signature(blocks[0])
    return all(_signature(block) == first for block in blocks[1:])


def _collect(
    module: nn.Module, groups: list[tuple[nn.Module, ...]], around: list[nn.Module]
) -> None:
    for child in module.children():
        if _alike(child):
            groups.append(tuple(child.children()))
        elif any(_alike(submodule) for submodule in child.modules()):
            _collect(child, groups, around)
        elif any(child.children()) and type(child).forward is not nn.ModuleList.forward:
            around.append(child)


def find(model: nn.Module) -> Regions | None:
    """Return the regions of `model`, or None where most of it is not repeated."""
    groups: list[tuple[nn.Module, ...]] = []
    around: list[nn.Module] = []
    _collect(model, groups, around)
    repeated = sum(
        parameter.numel() for group in groups for block in group for parameter in block.parameters()
    )
    if not groups or repeated < LEAST_PART * sum(
        parameter.numel() for parameter in model.parameters()
    ):
        return None
    return Regions(tuple(groups), tuple(around))


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def compile_regions(model: nn.Module, regions: Regions, **options: Any) -> None:
    """Compile the regions of `model` in place, with torch.compile's options.

    The first call that compiles shows whether blocks share their code. They do not where each has a
    number of its own, say. A warning then says so, and the model is compiled as one from the next
    call on.
    """
    for alike in (*regions.groups, *((module,) for module in regions.around)):
        compile_calls(alike, **options)

    def first_call(*args: Any, **kwargs: Any) -> Any:
        began, shared = _graphs(), True
        compiled = {block: block._compiled_call_impl for group in regions.groups for block in group}

        def watched(block: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal shared
                before = _graphs()
                result = call(*args, **kwargs)
                shared &= _graphs() == before
                return result

            return run

        for group in regions.groups:
            # The first block has other inputs at times, such as some that need no gradient.
            for block in group[2:]:
                block._compiled_call_impl = watched(block, compiled[block])  # type: ignore[assignment, arg-type]
        try:
            with torch._dynamo.config.patch(recompile_limit=regions.blocks + _SPARE_RECOMPILATIONS):
                return model._call_impl(*args, **kwargs)  # type: ignore[operator]
        finally:
            for block, call in compiled.items():
                block._compiled_call_impl = call
            if not shared:
                what = f"{type(model).__name__}'s repeated blocks do not share what is compiled"
                warnings.warn(f"{what}: from its next call on, it is compiled as one", stacklevel=2)
                for module in (*compiled, *regions.around):
                    module._compiled_call_impl = None
                compile_calls([model], **options)
            elif _graphs() > began:
                model._compiled_call_impl = None

    model._compiled_call_impl = first_call  # type: ignore[assignment]
