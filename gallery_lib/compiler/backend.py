"""Compiler backends behind a small registry: `compile_model(model, options, device)`.

A backend compiles a module in place, so that its state-dict keys stay as they are. `inductor` is
torch.compile. Its caches live in the project's cache folder, so that the second run of a model
starts in seconds. An adapter for another compiler registers itself with `register_backend`.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gallery_lib.compiler import cache, cuda_graphs
from gallery_lib.compiler.calls import compile_inside, compiled_call, set_compiled, wrap_calls
from gallery_lib.config import Compiler
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware

if TYPE_CHECKING:
    from torch._inductor.custom_graph_pass import CustomGraphPass

Backend = Callable[[nn.Module, Compiler, torch.device, bool], str]
"""Function that compiles the module in place for the device, with images in channels_last or not;
returns one line on what it did."""

_BACKENDS: dict[str, Backend] = {}


def register_backend(name: str, backend: Backend) -> None:
    """Make `backend` available as `config.compiler.backend = name`."""
    _BACKENDS[name] = backend


def compile_model(
    model: nn.Module,
    options: Compiler,
    device: torch.device,
    *,
    channels_last: bool | None = None,
) -> str:
    """Compile `model` in place with the configured backend; return a line for the run's results.

    Compilation itself happens at the first call. With `channels_last`, convolutions run in that
    layout inside the compiled graph; by default where the device gains from it.

    Raises:
        InputError: as `check_compiler` does.
    """
    check_compiler(options, device)
    if channels_last is None:
        channels_last = hardware.prefers_channels_last(device.type)
    backend, with_layout = _BACKENDS[options.backend], bool(channels_last)
    done = compile_inside(model, lambda: backend(model, options, device, with_layout))
    if cuda_graphs.captured(options, device):
        cuda_graphs.clone_graph_outputs(model)
    if (compiled := compiled_call(model)) is not None:
        set_compiled(model, functools.partial(_with_guards_on_hooks, compiled))
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
        cxx = os.environ.get("CXX")
        raise InputError(
            f"compiling for the CPU needs a C++ compiler, and CXX={cxx} names none that is there. "
            "Unset it, or name another."
            if cxx
            else "compiling for the CPU needs a C++ compiler, and none was found. "
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


def _inductor(
    model: nn.Module, options: Compiler, device: torch.device, channels_last: bool
) -> str:
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
    batch_norms, said = _batch_norms(options, device, channels_last)
    done += said
    if joint := _passes_of_both_ways(options, device, channels_last, bool(batch_norms)):
        compile_options["joint_custom_pre_pass"] = OneAfterAnother(joint)
    passes = _passes_of_the_model_as_written(options, channels_last) if device.type == "cpu" else []
    if passes or batch_norms:
        compile_options["pre_grad_custom_pass"] = OneAfterAnother([*passes, *batch_norms])
    last = _passes_of_one_way(options) if device.type == "cpu" else []
    compile_options["post_grad_custom_post_pass"] = OneAfterAnother(
        [kept_graphs.KeptGraphs(), *last]
    )
    # Where it is off Inductor would lay convolutions out by rules of its own.
    compile_options["layout_optimization"] = channels_last
    compile_options["force_layout_optimization"] = channels_last
    if options.mode != "default":
        compile_options |= torch._inductor.list_mode_options(options.mode)
    compile_options |= cuda_graphs.compile_options(options, device)
    if cuda_graphs.captured(options, device):
        done += ", CUDA graphs where shapes are static"
    name = "inductor"
    if options.keep_activations < 1.0:
        name = inductor_keeping(options.keep_activations)
        done += f", {options.keep_activations:.0%} of the activations kept"
    compile_calls([model], backend=name, options=compile_options)
    return done


_guards_lock = threading.Lock()
_calls_under_way = 0
"""Calls of compiled models in all threads."""
_skipped_outside = True
"""Dynamo's setting outside these calls."""


def _with_guards_on_hooks(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with Dynamo's guards on module hooks enabled.

    A hook that is added or removed later then makes Dynamo compile the graph again. By default
    Dynamo takes the hooks of the first call for all there will ever be, and runs without later
    ones.
    """
    # Imported here, since the import takes a second of every start.
    from torch._dynamo import config as dynamo_config

    global _calls_under_way, _skipped_outside
    with _guards_lock:
        if not _calls_under_way:
            _skipped_outside = dynamo_config.skip_nnmodule_hook_guards
            dynamo_config.skip_nnmodule_hook_guards = False
        _calls_under_way += 1
    try:
        return call(*args, **kwargs)
    finally:
        with _guards_lock:
            _calls_under_way -= 1
            if not _calls_under_way:
                dynamo_config.skip_nnmodule_hook_guards = _skipped_outside


def _passes_of_the_model_as_written(
    options: Compiler, channels_last: bool
) -> list[CustomGraphPass]:
    """Return the graph passes for CPUs that replace functions before their gradients are known."""
    passes: list[CustomGraphPass] = []
    if options.whole_upsampling:
        from gallery_lib.compiler.passes.upsampling import Upsampling

        passes.append(Upsampling())
    if options.max_pooling and channels_last:
        from gallery_lib.compiler.passes.max_pooling import MaxPooling
        from gallery_lib.kernels import max_pool

        if max_pool.available():
            passes.append(MaxPooling())
    return passes


def _batch_norms(
    options: Compiler, device: torch.device, channels_last: bool
) -> tuple[list[CustomGraphPass], str]:
    """Return the graph pass for own batch norms, if any, and what to say about those asked for."""
    from gallery_lib.compiler.passes import large_batch_norms

    if options.all_batch_norms:
        reason: str | None = "the model is not in channels_last"
        if channels_last:
            reason = large_batch_norms.reason_not_there(device)
        if reason:
            return [], f", own batch norms not used: {reason}"
        return [large_batch_norms.LargeBatchNorms(every=True)], ", own batch norms of every size"
    asked = device.type == "cpu" and options.large_batch_norms and channels_last
    if asked and large_batch_norms.reason_not_applied() is None:
        return [large_batch_norms.LargeBatchNorms()], ""
    return [], ""


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


def _passes_of_both_ways(
    options: Compiler, device: torch.device, channels_last: bool, batch_norms: bool
) -> list[CustomGraphPass]:
    """Return the graph passes that rewrite forward and backward in one graph."""
    from gallery_lib.compiler.passes.channels_last import ChannelsLast

    layout: list[CustomGraphPass] = [ChannelsLast()] if channels_last else []
    if device.type != "cpu":
        return layout
    passes: list[CustomGraphPass] = []
    if options.short_attention:
        from gallery_lib.compiler.passes.short_attention import ShortAttention

        passes.append(ShortAttention())
    if options.small_convolutions and channels_last:
        from gallery_lib.compiler.passes import small_convolutions

        if small_convolutions.reason_not_applied() is None:
            passes.append(small_convolutions.SmallConvolutions())
    passes += layout
    if options.mixed_products:
        from gallery_lib.compiler.passes.mixed_products import MixedProducts
        from gallery_lib.kernels import mixed_product

        if mixed_product.reason_not_available() is None:
            passes.append(MixedProducts())
    if batch_norms:
        from gallery_lib.compiler.passes.two_gradients import TwoGradients

        passes.append(TwoGradients())
    return passes


register_backend("inductor", _inductor)


# --------------------------------------------------------------------------------------------------
# Compile what calls of modules do, in place: `compile_calls(modules, backend=…, options=…)`.
#
# It is `Module.compile`, and works where that compiles nothing:
#
# - Dynamo skips functions in torch's own files. A module whose `forward` is torch's (Sequential,
#   TransformerEncoderLayer) has no other, and torch 2.11 leaves such a call as it is, in silence.
# - Dynamo counts compilations by function, not by model, and stops at eight. Models of one
#   class share a function. All models whose `forward` is torch's share one. The ninth in a process
#   is left as it is, and so are all after it.
#
# Here the function around the calls belongs to these modules alone, and so does the count.


def compile_calls(modules: Iterable[nn.Module], **options: Any) -> None:
    """Compile the calls of `modules` in place, with torch.compile's options.

    Modules that are alike share what is compiled. They share nothing with modules of another call.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        # Also counts the functions that are called after a graph break; torch 2.11 cannot.
        options["isolate_recompiles"] = True
    compiled = torch.compile(_function_of_its_own(), **options)
    for module in modules:
        set_compiled(module, functools.partial(compiled, module._call_impl))


def _call(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)


def _function_of_its_own() -> types.FunctionType:
    """Return a copy of `_call` with a code object of its own, by which Dynamo counts."""
    return types.FunctionType(_call.__code__.replace(), globals(), _call.__name__)


# --------------------------------------------------------------------------------------------------
# Compile anew when weights are frozen or unfrozen, on releases of torch that do not notice.
#
# The compiled graph of torch 2.11 has gradients for the weights that were trained at its first
# call. A layer that is unfrozen later would get none, in silence. torch 2.15 compiles another
# graph by itself; releases between them are treated as 2.11 is.


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

    wrap_calls(model, step)


# --------------------------------------------------------------------------------------------------
# Activation checkpointing by the compiler, for models that do not fit into memory otherwise.
#
# A part of the activations is kept for the backward pass, the rest is recomputed. torch's
# partitioner chooses the activations that are cheapest to recompute, graph by graph, from the
# operations that each takes. Results change only by the order of operations.


@functools.cache
def inductor_keeping(part: float) -> str:
    """Return the name of a torch.compile backend that keeps `part` (0 to 1) of the activations.

    In all else the backend does what `inductor` does.
    """
    from torch._dynamo import register_backend

    def backend(graph: Any, inputs: Any, *, options: dict[str, Any] | None = None) -> Any:
        import torch._functorch.config as autograd_config
        from torch._inductor.compile_fx import compile_fx

        with autograd_config.patch(activation_memory_budget=part):
            return compile_fx(graph, inputs, config_patches=options)

    name = f"gallery_inductor_keeping_{part:g}"
    register_backend(backend, name=name)
    return name
