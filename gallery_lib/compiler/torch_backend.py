"""`torch.compile(model, backend="gallery")`: Inductor with the graph passes of this package.

torch finds the backend by the entry point `torch_dynamo_backends` of an installed package, and
`torch.compiler.list_backends()` names it. `plug` gives the same passes to code that names
`"inductor"` itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import fx
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass

from gallery_lib.compiler import passes
from gallery_lib.compiler.backend import allow_kept_graphs, use_cache
from gallery_lib.config import Compiler
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware


def gallery(
    graph: fx.GraphModule,
    inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph with Inductor and our passes, for training and for inference.

    `torch.compile(model, backend="gallery")` calls it. Read in torch 2.11 and 2.15.

    Args:
        graph: what Dynamo has traced.
        inputs: its example inputs; a GPU among their devices is what is compiled for.
        mode: a mode of torch.compile (`"max-autotune"`).
        options: options of Inductor, and `without`, names of our passes to leave out
            (`{"without": ("short_attention",)}`). A pass of yours runs before ours.

    Raises:
        InputError: for an unknown option, or a mode and options that contradict each other.

    Example:
        >>> import torch, gallery_lib
        >>> model = torch.compile(torch.nn.Linear(4, 1), backend="gallery")
    """
    from torch._inductor.compile_fx import compile_fx

    given = dict(options or {})
    without = tuple(given.pop("without", ()))
    patches = dict(inductor_options(_device_type(inputs), without))
    _check(given)
    if mode and mode != "default":
        patches |= torch._inductor.list_mode_options(mode)
    for name, ours in list(patches.items()):
        if isinstance(ours, passes.Passes):
            theirs = given.pop(name, getattr(torch._inductor.config, name))
            patches[name] = after(theirs, ours)
    patches |= given
    use_cache()
    compiled = cast(Callable[..., Any], compile_fx(graph, inputs, config_patches=patches))
    allow_kept_graphs()
    return compiled


@functools.cache
def inductor_options(device_type: str, without: tuple[str, ...] = ()) -> MappingProxyType[str, Any]:
    """Return Inductor's options that hold our passes and layout for a type of device.

    Args:
        device_type: `cpu` or `cuda`.
        without: names of passes to leave out.

    Raises:
        InputError: for a name that no pass has.
    """
    channels_last = hardware.prefers_channels_last(device_type)
    chosen: dict[str, Any] = passes.choose(
        Compiler(without=without), torch.device(device_type), channels_last
    )
    if device_type == "cpu":
        names = ("layout_optimization", "force_layout_optimization")
        chosen |= dict.fromkeys(names, channels_last)
    return MappingProxyType(chosen)


def _check(options: dict[str, Any]) -> None:
    known = torch._inductor.config.get_config_copy()
    for name in options:
        if name.rpartition(".")[2] not in known and name not in known:
            raise InputError(
                f'torch.compile(backend="gallery") has no option `{name}`.'
                f"{did_you_mean(name, known)} It takes `without` and Inductor's "
                "(torch._inductor.list_options()).",
                parameter=name,
            )


def _device_type(inputs: list[Any]) -> str:
    types = {one.device.type for one in inputs if isinstance(one, torch.Tensor)}
    return "cuda" if "cuda" in types else "cpu"


def after(others: Any, ours: passes.Passes) -> CustomGraphPass:
    """Return one pass that runs another's, or several of others, and then ours.

    Those of ours that `plug` has set already are left out.
    """
    given = others if isinstance(others, list | tuple) else [others]
    if len(given) == 1 and isinstance(given[0], _Chain):
        given = given[0].others
    return _Chain([one for one in given if one is not None], ours)


_Aware = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", CustomGraphPass)
"""Passes that are told whether the graph is for inference; torch 2.11 has none."""


class _Chain(_Aware):  # type: ignore[misc, valid-type]
    """Others' passes, and ours behind them, where torch 2.11 takes a single one."""

    def __init__(self, others: list[Any], ours: passes.Passes) -> None:
        self.others, self.ours = others, ours
        self.passes = ours.passes

    def __call__(self, graph: fx.Graph, is_inference: bool = False) -> None:
        for one in (*self.others, self.ours):
            if _Aware is not CustomGraphPass and isinstance(one, _Aware):
                one(graph, is_inference)  # type: ignore[call-arg]
            else:
                one(graph)

    def uuid(self) -> Any:
        """Return a part of the cache's key; None, which is no caching, where another has none."""
        keys = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.others]
        return None if None in keys else (keys, self.ours.uuid())
