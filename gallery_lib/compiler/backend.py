"""Compilation of a model's calls in place: `compile_model(model, options, device)`.

State-dict keys stay as they are. `options.backend` is a backend of torch.compile, `inductor` by
default: it alone gets graph passes, a cache in the project's folder, and CUDA graphs. So the second
run of a model starts in seconds.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.compiler import cache, cuda_graphs, recompiles
from gallery_lib.compiler.by_shape import STATIC_SHAPES, ByShape
from gallery_lib.compiler.calls import Call, compiled_call, set_compiled, wrap_calls
from gallery_lib.config import Compiler
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import kept_code
from gallery_lib.system import hardware
from gallery_lib.system.processes import tell

INDUCTOR = "inductor"


def compile_model(
    model: nn.Module, options: Compiler, device: torch.device, *, channels_last: bool | None = None
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
    description = _compile(model, options, device, bool(channels_last))
    if _captured(options, device):
        cuda_graphs.keep_tensors(model)
    compile_anew_when_frozen(model)
    leave_lazy_calls_eager(model)
    return description


def check_compiler(options: Compiler, device: torch.device) -> None:
    """Raise InputError for a missing C++ compiler."""
    if (options.backend, device.type) == (INDUCTOR, "cpu") and hardware.cpp_compiler() is None:
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


def _compile(model: nn.Module, options: Compiler, device: torch.device, channels_last: bool) -> str:
    if options.backend != INDUCTOR:
        compile_calls(model, backend=options.backend)
        return options.backend
    use_cache()
    # Imported here, since the import takes a second of every start.
    from gallery_lib.compiler import passes

    # Where it is off Inductor would lay convolutions out by rules of its own.
    compile_options: dict[str, object] = {
        **passes.choose(options, device, channels_last),
        "layout_optimization": channels_last,
        "force_layout_optimization": channels_last,
    }
    description = INDUCTOR
    if _captured(options, device):
        compile_options |= cuda_graphs.OPTIONS
        description += ", CUDA graphs where shapes are static"
    elif device.type == "cuda":
        compile_options["triton.cudagraphs"] = False
    compile_calls(model, backend=INDUCTOR, options=compile_options)
    return description


def _captured(options: Compiler, device: torch.device) -> bool:
    """Return whether a model that is compiled for `device` with `options` runs as CUDA graphs."""
    return device.type == "cuda" and options.backend == INDUCTOR and options.cuda_graphs


def use_cache() -> None:
    """Have Inductor keep its code in this package's cache, or in the folder that the user named."""
    os.environ.update(cache.cache_variables())
    cache.keep_headers()


# --------------------------------------------------------------------------------------------------
# Compile what calls of a module do, in place: `compile_calls(model, backend=…, options=…)`.
#
# It is `Module.compile`, and works where that compiles nothing:
#
# - Dynamo skips functions in torch's own files. A module whose `forward` is torch's (Sequential,
#   TransformerEncoderLayer) has no other, and torch 2.11 leaves such a call as it is, in silence.
# - Dynamo counts compilations by function, not by model, and stops at eight. Models of one
#   class share a function. All models whose `forward` is torch's share one. The ninth in a process
#   is left as it is, and so are all after it.
#
# - Dynamo also remembers by function which sizes have changed. If the inputs of a second model of
#   such a class differ from the first one's, its first call makes code for all sizes.
#
# Here the functions around the calls belong to this module alone, and so does what is counted.

_numbers = itertools.count()


def compile_calls(model: nn.Module, static_shapes: int = STATIC_SHAPES, **options: Any) -> None:
    """Compile the calls of `model` in place, with torch.compile's options.

    At most `static_shapes` input shapes get code of their own.
    """
    from torch._dynamo import config as dynamo_config

    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        # Also counts the functions that are called after a graph break; torch 2.11 cannot.
        options["isolate_recompiles"] = True
    if not (dynamo_config.assume_static_by_default and dynamo_config.automatic_dynamic_shapes):
        static_shapes = 0  # the user has decided it for all shapes

    def make() -> Call:
        # A code object, by which Dynamo counts, under a name, by which it remembers sizes.
        code = _call.__code__.replace(co_name=f"call_{next(_numbers)}")
        function = types.FunctionType(code, globals(), code.co_name)
        return torch.compile(function, **options)

    compiled = ByShape(model, make, static_shapes)
    set_compiled(model, functools.partial(_with_guards_on_hooks, compiled, model._call_impl))


def _call(call: Call, /, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)


def _with_guards_on_hooks(compiled: Call, call: Call, /, *args: Any, **kwargs: Any) -> Any:
    """Call with Dynamo's guards on module hooks enabled, from now on in the whole process.

    A hook that is added or removed later then makes Dynamo compile the graph again. By default
    Dynamo takes the hooks of the first call for all there will ever be, and runs without later
    ones.
    """
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.utils import counters

    if dynamo_config.skip_nnmodule_hook_guards:  # newer releases have a setting for each thread
        dynamo_config.skip_nnmodule_hook_guards = False
    graphs = counters["stats"]["unique_graphs"]
    try:
        return compiled(call, *args, **kwargs)
    finally:  # a call that fails may have compiled
        recompiles.look()
        if counters["stats"]["unique_graphs"] != graphs:
            allow_kept_graphs()


# --------------------------------------------------------------------------------------------------
# Backward passes that keep their graphs, `loss.backward(retain_graph=True)`.
#
# A compiled backward pass may write over what the forward pass has saved for it ("donated
# buffers"), which saves memory. torch refuses to keep the graph of such a pass. Here it gets copies
# of these tensors, and only a pass that keeps its graph pays for them.

_allowed: weakref.WeakSet[type] = weakref.WeakSet()


def allow_kept_graphs() -> None:
    """Let backward passes of all that was compiled so far in this process keep their graphs."""
    for kind in torch.autograd.Function.__subclasses__():
        if hasattr(kind, "_backward_impl") and hasattr(kind, "_aot_id") and kind not in _allowed:
            _allowed.add(kind)
            kind._backward_impl = staticmethod(
                functools.partial(_backward, kind, kind._backward_impl)
            )


def _backward(kind: Any, plain: Call, ctx: Any, all_args: list[Any]) -> Any:
    from torch._functorch import config as functorch_config
    from torch._inductor.utils import clone_preserve_strides

    if not torch._C._autograd._get_current_graph_task_keep_graph():
        return plain(ctx, all_args)
    for place in kind.metadata.bw_donated_idxs or ():
        all_args[place] = clone_preserve_strides(all_args[place])  # which code relies on
    # As far as torch knows nothing is written over; code that is compiled now does not do it.
    with functorch_config.patch(donated_buffer=False):
        return plain(ctx, all_args)


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

    def step(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal before
        now = [p.requires_grad for p in parameters]
        if before not in (None, now):
            for module in model.modules():  # guards look again where a module's dict has changed
                module._parameters[""] = None
                del module._parameters[""]
        before = now
        return call(*args, **kwargs)

    wrap_calls(model, step)


def leave_lazy_calls_eager(model: nn.Module) -> None:
    """Run the call that gives lazy parameters their values eagerly.

    Dynamo would run it more than once, and leave torch's generator in another state.
    """
    lazy = [p for p in model.parameters() if nn.parameter.is_lazy(p)]
    if not lazy:
        return

    def step(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not any(map(nn.parameter.is_lazy, lazy)):
            return call(*args, **kwargs)
        with torch.compiler.set_stance("force_eager"):
            return call(*args, **kwargs)

    wrap_calls(model, step)


# --------------------------------------------------------------------------------------------------
# Messages about compilation: that it is under way, and where it had to break the graph.
#
# A compiled model compiles at its first call, for a minute or more, in silence. At a graph break
# Dynamo cannot follow the code (a branch on a value, say). It then compiles the pieces and runs the
# rest eagerly, in silence too. The messages announce the wait when it begins, and the graph breaks
# when they are known, once per model.


@contextlib.contextmanager
def observed(
    graph_began: Callable[[], None], build_began: Callable[[], None], ended: Callable[[], None]
) -> Iterator[None]:
    """Call `graph_began` or `build_began`, and `ended`, around each compilation in the body.

    A graph is one of a forward or a backward pass, in any backend of torch.compile; what is built
    are own kernels.
    """
    from torch._dynamo.callback import callback_handler  # here, since the import takes a second

    def on_start(*arguments: Any) -> None:
        graph_began()

    def on_end(*arguments: Any) -> None:
        ended()

    callback_handler.register_start_callback(on_start)
    callback_handler.register_end_callback(on_end)
    try:
        with kept_code.observed(build_began, ended):
            yield
    finally:
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
            callback_handler.remove_start_callback(on_start)
            callback_handler.remove_end_callback(on_end)


def _breaks() -> Counter[str]:
    """Return the graph breaks that Dynamo has counted in this process so far, by reason."""
    from torch._dynamo.utils import counters

    # Newer releases count the reasons as `unimplemented`, older ones as `graph_break`.
    return Counter({**counters["unimplemented"], **counters["graph_break"]})


def _line_of_break() -> str:
    """Return the user's line at which Dynamo broke a graph last, as ` (FILE:LINE)`."""
    from torch._dynamo.utils import graph_break_reasons

    stack = graph_break_reasons[-1].user_stack if graph_break_reasons else ()
    return f" ({stack[-1].filename}:{stack[-1].lineno})" if stack else ""


def announce_first_call(model: nn.Module, done: MutableMapping[str, str]) -> None:
    """Make `model`, compiled in place, announce what its first call does, on rank 0 alone.

    The call adds its graph breaks to `done["graph breaks"]`, and says in `done["compiler"]` where
    nothing was compiled.
    """
    compiled: Any = compiled_call(model)
    name = type(model).__name__
    say = tell if process_group.rank() == 0 else (lambda message: None)

    def first_call(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.utils import counters

        recompiles.watch(lambda line: say(f"{name}: {line}"))
        before, graphs = _breaks(), counters["stats"]["unique_graphs"]
        say(f"compiling {name}; later starts take it from the cache")
        result = compiled(*args, **kwargs)
        if compiled_call(model) is first_call:
            set_compiled(model, compiled)
        if counters["stats"]["unique_graphs"] == graphs:
            done["compiler"] = f"none: the compiler made no graph of {name}"
            say(f"{name} runs as it is: the compiler made no graph of it")
        if breaks := _breaks() - before:
            reason = next(iter(breaks)).strip().splitlines()[0]
            others = " and others" if len(breaks) > 1 else ""
            done["graph breaks"] = f"{breaks.total()}: {reason}{_line_of_break()}{others}"
            say(
                f"{name} is not one graph; the parts between the breaks are compiled: "
                f"{done['graph breaks']}"
            )
        return result

    set_compiled(model, first_call)
