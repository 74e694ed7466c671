"""Compiler backends behind a small registry: `compile_model(model, options, device)`.

A backend compiles a module in place, so that its state-dict keys stay as they are. `inductor` is
torch.compile. Its caches live in the project's cache folder, so that the second run of a model
starts in seconds. An adapter for another compiler registers itself with `register_backend`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gallery_lib.compiler import cache, cuda_graphs, repeated_blocks
from gallery_lib.compiler.calls import go_through
from gallery_lib.compiler.frozen_weights import compile_anew_when_frozen
from gallery_lib.compiler.fusion.batch_norm import is_fused
from gallery_lib.compiler.in_place import compile_calls
from gallery_lib.config import Compiler
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware

if TYPE_CHECKING:
    from torch._inductor.custom_graph_pass import CustomGraphPass

Backend = Callable[[nn.Module, Compiler, torch.device], str]
"""Function that compiles the module in place for the device; returns one line on what it did."""

_BACKENDS: dict[str, Backend] = {}


def register_backend(name: str, backend: Backend) -> None:
    """Make `backend` available as `config.compiler.backend = name`."""
    _BACKENDS[name] = backend


def compile_model(model: nn.Module, options: Compiler, device: torch.device) -> str:
    """Compile `model` in place with the configured backend; return a line for the run's results.

    Compilation itself happens at the first call.

    Raises:
        InputError: as `check_compiler` does.
    """
    check_compiler(options, device)
    done = _BACKENDS[options.backend](model, options, device)
    if cuda_graphs.captured(options, device):
        cuda_graphs.keep_what_callers_keep(model)
    go_through(model, _with_guards_on_hooks)
    compile_anew_when_frozen(model)
    return done


def check_compiler(options: Compiler, device: torch.device) -> None:
    """Raise InputError for an unknown backend or a missing C++ compiler."""
    if options.backend not in _BACKENDS:
        known = ", ".join(sorted(_BACKENDS))
        raise InputError(
            "unknown compiler backend "
            f"`{options.backend}`.{did_you_mean(options.backend, _BACKENDS)} Known: {known}.",
            parameter="backend",
        )
    if options.backend == "inductor" and device.type == "cpu" and hardware.cpp_compiler() is None:
        raise InputError(
            "compiling for the CPU needs a C++ compiler, and none was found. "
            "Install g++ (Debian, Ubuntu: apt-get install g++) or name one in CXX.",
            parameter="CXX",
        )


def read_ahead() -> None:
    """Start hashing torch's and Triton's sources in the background.

    Every key in Inductor's cache needs these digests. A torch that can prefetch them (2.15 does)
    hashes now. Others hash at the first compilation, which takes a second.
    """
    from torch._inductor import codecache

    for key in (codecache.torch_key, getattr(codecache, "triton_key", None)):
        if prefetch := getattr(key, "prefetch", None):
            prefetch()


def _inductor(model: nn.Module, options: Compiler, device: torch.device) -> str:
    os.environ.update(cache.cache_variables())
    cache.keep_headers()
    # Imported here, since the import takes a second of every start.
    from gallery_lib.compiler.passes import kept_graphs
    from gallery_lib.compiler.passes.graph_writer import OneAfterAnother

    kept_graphs.allow()
    compile_options: dict[str, object] = {}
    done = f"inductor, mode {options.mode}"
    if device.type == "cpu" and options.bf16_on_fp32_units and not hardware.computes_in_bf16("cpu"):
        from gallery_lib.compiler.passes.emulated_bf16 import EmulatedBf16

        compile_options["post_grad_custom_pre_pass"] = EmulatedBf16()
        done += ", any bfloat16 on fp32 units"
    if device.type == "cpu" and (passes := _passes_of_both_ways(model, options)):
        compile_options["joint_custom_pre_pass"] = OneAfterAnother(passes)
    if device.type == "cpu" and (passes := _passes_of_the_model_as_written(options)):
        compile_options["pre_grad_custom_pass"] = OneAfterAnother(passes)
    last = _passes_of_one_way(options) if device.type == "cpu" else []
    compile_options["post_grad_custom_post_pass"] = OneAfterAnother(
        [kept_graphs.KeptGraphs(), *last]
    )
    if not hardware.prefers_channels_last(device.type):
        # Inductor would otherwise lay convolutions out in channels_last.
        compile_options["layout_optimization"] = False
    if device.type == "cpu" and options.any_threads:
        compile_options["cpp.dynamic_threads"] = True
    if options.mode != "default":
        compile_options |= torch._inductor.list_mode_options(options.mode)
    compile_options |= cuda_graphs.compile_options(options, device)
    if cuda_graphs.captured(options, device):
        done += ", CUDA graphs where shapes are static"
    name = "inductor"
    if options.keep_activations < 1.0:
        from gallery_lib.compiler.activation_checkpointing import inductor_keeping

        name = inductor_keeping(options.keep_activations)
        done += f", {options.keep_activations:.0%} of the activations kept"
    regions = repeated_blocks.find(model) if options.repeated_blocks_once else None
    if regions is None:
        if options.repeated_blocks_once:
            done += ", most of the model is not repeated: compiled as a whole"
        compile_calls([model], backend=name, options=compile_options)
        return done
    repeated_blocks.compile_regions(model, regions, backend=name, options=compile_options)
    return (
        f"{done}, {regions.blocks} repeated blocks compiled once for each of {len(regions.groups)} "
        "kinds"
    )


def _with_guards_on_hooks(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call with Dynamo's guards on module hooks enabled.

    A hook that is added or removed later then makes Dynamo compile the graph again. By default
    Dynamo takes the hooks of the first call for all there will ever be, and runs without later
    ones.
    """
    # Imported here, since the import takes a second of every start.
    from torch._dynamo import config as dynamo_config

    before = dynamo_config.skip_nnmodule_hook_guards
    dynamo_config.skip_nnmodule_hook_guards = False
    try:
        return call(*args, **kwargs)
    finally:
        dynamo_config.skip_nnmodule_hook_guards = before


def _passes_of_the_model_as_written(options: Compiler) -> list[CustomGraphPass]:
    """Return the graph passes for CPUs that replace functions before their gradients are known."""
    passes: list[CustomGraphPass] = []
    if options.whole_upsampling:
        from gallery_lib.compiler.passes.upsampling import Upsampling

        passes.append(Upsampling())
    if options.max_pooling:
        from gallery_lib.compiler.passes.max_pooling import MaxPooling
        from gallery_lib.kernels import max_pool

        if max_pool.available():
            passes.append(MaxPooling())
    if _takes_large_batch_norms(options):
        from gallery_lib.compiler.passes.large_batch_norms import LargeBatchNorms

        passes.append(LargeBatchNorms())
    return passes


def _takes_large_batch_norms(options: Compiler) -> bool:
    from gallery_lib.compiler.passes import large_batch_norms

    return options.large_batch_norms and large_batch_norms.reason_not_applied() is None


def _passes_of_one_way(options: Compiler) -> list[CustomGraphPass]:
    """Return the graph passes for CPUs that go last, over the forward and the backward graph."""
    passes: list[CustomGraphPass] = []
    if options.vector_dropout:
        from gallery_lib.compiler.passes.dropout_masks import DropoutMasks
        from gallery_lib.kernels import dropout_mask

        if dropout_mask.available():
            passes.append(DropoutMasks())
    if options.vector_masks:
        from gallery_lib.compiler.passes.vector_masks import VectorMasks

        passes.append(VectorMasks())
    return passes


def _passes_of_both_ways(model: nn.Module, options: Compiler) -> list[CustomGraphPass]:
    """Return the graph passes for CPUs that rewrite forward and backward in one graph."""
    passes: list[CustomGraphPass] = []
    if options.short_attention:
        from gallery_lib.compiler.passes.short_attention import ShortAttention

        passes.append(ShortAttention())
    if options.small_convolutions:
        from gallery_lib.compiler.passes import small_convolutions

        if small_convolutions.reason_not_applied() is None:
            passes.append(small_convolutions.SmallConvolutions())
    if options.mixed_products:
        from gallery_lib.compiler.passes.mixed_products import MixedProducts
        from gallery_lib.kernels import mixed_product

        if mixed_product.reason_not_available() is None:
            passes.append(MixedProducts())
    if is_fused(model) or _takes_large_batch_norms(options):
        from gallery_lib.compiler.passes.two_gradients import TwoGradients

        passes.append(TwoGradients())
    return passes


register_backend("inductor", _inductor)
