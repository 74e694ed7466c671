"""Training that begins uncompiled, while the compiler fills its cache in the background.

The first training call forks a process (`background_process`), which compiles the model for that
call, forward and backward. Calls run uncompiled meanwhile. Once the process is done, the first call
with the same kind of inputs goes over: the model is compiled from the cache, which takes seconds.
Weights, buffers, optimizer and random states are not touched.

Results before that call are those of an uncompiled run to the bit, and later ones those of a
compiled run. They differ by rounding, so the call at which a run goes over shows in its losses.
"""

from __future__ import annotations

import importlib
import sys
import time
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gallery_lib.compiler.backend import check_compiler, compile_model
from gallery_lib.compiler.background_process import CompilerProcess
from gallery_lib.compiler.notices import announce_first_call, say
from gallery_lib.config import Compiler

_processes: weakref.WeakKeyDictionary[nn.Module, CompilerProcess] = weakref.WeakKeyDictionary()

_NOT_FORKED = "Autograd-and-Fork"
"""Part of torch's error for a backward pass in a fork of a process that has had some."""


def compile_now_or_later(
    model: nn.Module, options: Compiler, device: torch.device, done: MutableMapping[str, str]
) -> None:
    """Have `model` compile at its first call, or once the compiler has worked in the background.

    Args:
        model: changed in place.
        options: whether and how; where the compiler cannot work in the background a line says so.
        device: where the model runs.
        done: gets lines about what was done, under `compiler`.

    Raises:
        InputError: for an unknown backend or a missing C++ compiler.
    """
    check_compiler(options, device)
    reason = _reason_against(options, device) if options.background else ""
    later = options.background and not reason

    def compile_now() -> None:
        done["compiler"] = compile_model(model, options, device)
        announce_first_call(model, done, the_wait=not later)

    if later:
        done["compiler"] = "none: it was still at work in the background"
        transition = _Transition(model, compile_now, done, options.background_nice)
        model._compiled_call_impl = transition.call  # type: ignore[assignment]
        return
    compile_now()
    if reason:
        done["compiler"] += f", not in the background: {reason}"
        say(f"the compiler does not work in the background, and the first step waits: {reason}")


def _reason_against(options: Compiler, device: torch.device) -> str:
    """Return why the compiler cannot work in the background here, or ''."""
    if not sys.platform.startswith("linux"):
        return "it takes Linux's processes"
    if device.type != "cpu":
        return "a process that uses CUDA cannot be forked"
    if options.backend != "inductor":
        return f"the compiler `{options.backend}` has no cache that a process could fill"
    return ""


def end(model: nn.Module) -> None:
    """End the compiler's process of `model`, if it still works."""
    if process := _processes.get(model):
        process.end()


class _Transition:
    """Calls of a model until it has gone over."""

    def __init__(
        self,
        model: nn.Module,
        compile_now: Callable[[], None],
        done: MutableMapping[str, str],
        niceness: int,
    ) -> None:
        self._model, self._compile_now, self._done = model, compile_now, done
        self._name, self._niceness = type(model).__name__, niceness
        self._process: CompilerProcess | None = None
        self._inputs: Any = None
        self._calls, self._began = 0, 0.0
        self._waits = False

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model: uncompiled, or compiled for the first time."""
        uncompiled: Any = self._model._call_impl
        if not (self._model.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return uncompiled(*args, **kwargs)
        if self._process is None:
            self._begin(args, kwargs)
        elif (code := self._process.exit_code()) is not None:
            if code and _NOT_FORKED in self._process.fault():
                return self._in_the_foreground(args, kwargs)
            if code:
                self._give_up(f"the compiler failed in the background ({self._process.fault()})")
            elif self._inputs == _kinds(self._model, args, kwargs):
                return self._go_over(args, kwargs)
            elif not self._waits:
                self._waits = True
                say(f"{self._name} is compiled, and waits for a batch of its first one's shape")
        self._calls += 1
        return uncompiled(*args, **kwargs)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start the compiler's process on this call."""
        # Both processes need it, and going over is not to wait for it.
        importlib.import_module("torch._inductor.compile_fx")
        self._began = time.monotonic()

        def work() -> None:
            self._compile_now()
            _train_once(self._model, args, kwargs)

        try:
            self._process = CompilerProcess(work, self._niceness)
        except OSError as error:
            self._give_up(f"the compiler could not be started in the background ({error})")
            return
        _processes[self._model] = self._process
        weakref.finalize(self._model, self._process.end)
        self._inputs = _kinds(self._model, args, kwargs)
        say(f"{self._name}'s training begins uncompiled; the compiler works in the background")

    def _give_up(self, reason: str) -> None:
        self._model._compiled_call_impl = None
        self._done["compiler"] = f"none: {reason}"
        say(f"{reason}; {self._name} trains on uncompiled")

    def _in_the_foreground(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile now: the process cannot run backward passes."""
        why = "this process has trained before, and autograd cannot be forked then"
        say(f"the compiler does not work in the background, and this step waits: {why}")
        self._model._compiled_call_impl = None
        self._compile_now()
        self._done["compiler"] += f", not in the background: {why}"
        return self._model._compiled_call_impl(*args, **kwargs)  # type: ignore[misc]

    def _go_over(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile from the cache and make the first compiled call."""
        now = time.monotonic()
        waited = now - self._began
        self._model._compiled_call_impl = None
        self._compile_now()
        where = f"in the background: the first {self._calls} calls ran uncompiled"
        self._done["compiler"] = f"{self._done['compiler']}, {where}"
        result = self._model._compiled_call_impl(*args, **kwargs)  # type: ignore[misc]
        say(
            f"{self._name} goes over to compiled code after {self._calls} calls, {waited:.0f} s; "
            f"this call took {time.monotonic() - now:.1f} s"
        )
        return result


def _train_once(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a forward and a backward pass, whose gradients go nowhere.

    Gradients are asked for by name: `backward()` would run the hooks that average them.
    """
    import torch._inductor.config as inductor_config
    from torch._dynamo.callback import callback_handler

    callback_handler.clear()  # the training's, which show that it waits
    # The compiler takes one core, and no threads that the fork does not have.
    inductor_config.compile_threads = 1
    result = model._compiled_call_impl(*args, **kwargs)  # type: ignore[misc]
    outputs = [
        leaf
        for leaf in pytree.tree_leaves(result)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    inputs = [p for p in model.parameters() if p.requires_grad]
    if outputs and inputs:
        ones = [torch.ones_like(tensor) for tensor in outputs]
        torch.autograd.grad(outputs, inputs, ones, allow_unused=True)


def _kinds(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what has to be equal for the same compiled code to serve two calls."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    trained = [parameter.requires_grad for parameter in model.parameters()]
    return form, [_kind(leaf) for leaf in leaves], trained, torch.is_autocast_enabled("cpu")


def _kind(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf)
    dynamic = set(getattr(leaf, "_dynamo_dynamic_indices", ())) | set(
        getattr(leaf, "_dynamo_weak_dynamic_indices", ())
    )
    sizes = tuple(None if place in dynamic else size for place, size in enumerate(leaf.shape))
    strides = None if dynamic or leaf.layout is not torch.strided else leaf.stride()
    return sizes, strides, leaf.dtype, leaf.layout, leaf.requires_grad
