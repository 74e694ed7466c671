"""Accelerate a loop that another library drives: `import gallery_lib.plug` before its first step.

It is for code that names the compiler `"inductor"` itself and makes its own loop: Trainer,
Accelerate, Lightning, a script with `torch.compile(model)`. From then on

- Inductor runs our graph passes behind those that are set, and lays convolutions out as this CPU
  computes them fastest. Only what is compiled has these passes;
- an optimizer of torch.optim takes its fast form after its first step (`optim.adoption`);
- the host allocator keeps large blocks, and threads sleep where other work wants their cores.

One line on standard error says so. `off()` undoes it. Without the import nothing is changed.
Inductor keeps its options by thread (torch 2.15): import in the thread that trains.

Example:
    >>> import torch
    >>> import gallery_lib.plug
    >>> model = torch.compile(torch.nn.Linear(4, 1))
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gallery_lib import memory
from gallery_lib.comm import process_group
from gallery_lib.compiler import torch_backend
from gallery_lib.compiler.backend import use_cache
from gallery_lib.compiler.passes.graph_pass import Passes
from gallery_lib.optim import adoption
from gallery_lib.system import spinning
from gallery_lib.system.processes import tell

_changed: dict[tuple[Any, str], tuple[Any, Any]] = {}
"""Options of torch's compiler that were changed: what they were, and what they are."""
_seen: WeakSet[Optimizer] = WeakSet()
"""Optimizers of torch.optim that have taken a step since `on`."""
_hook: Any = None
_watches = False
"""Whether `on` began to watch the threads of this process."""


def on() -> str:
    """Switch everything on; return the line that says what was done. The import does this."""
    global _hook, _watches
    if _hook is not None:
        return "on already"
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    options = torch_backend.inductor_options(device_type)
    for name, value in options.items():
        before = getattr(inductor, name)
        if isinstance(value, Passes):
            value = torch_backend.after(before, Passes(value.passes, device_type))
        _change(inductor, name, value)
    # Code for all shapes leaves those that were compiled first to their own code.
    if hasattr(dynamo, "automatic_dynamic_exclusion_guard"):
        _change(dynamo, "automatic_dynamic_exclusion_guard", True)
    use_cache()
    _hook = register_optimizer_step_post_hook(_adopt)
    _watches = device_type == "cpu" and not spinning.is_on()
    threads = f", threads: {spinning.watch()}" if device_type == "cpu" else ""
    count = sum(len(value.passes) for value in options.values() if isinstance(value, Passes))
    return (
        f"{count} graph passes in Inductor, fast steps for optimizers of torch.optim, "
        f"allocator: {memory.keep_large_blocks()}{threads}"
    )


def _change(module: Any, name: str, value: Any) -> None:
    _changed[module, name] = getattr(module, name), value
    setattr(module, name, value)


def off() -> None:
    """Undo what `on` has done. Compiled code stays in models that have it; blocks stay kept."""
    global _hook
    if _hook is None:
        return
    _hook.remove()
    _hook = None
    if _watches:
        spinning.stop()
    for (module, name), (before, ours) in _changed.items():
        if getattr(module, name) is ours:  # otherwise somebody has changed it since
            setattr(module, name, before)
    _changed.clear()
    for optimizer in list(_seen):
        adoption.release_optimizer(optimizer)
    _seen.clear()


def _adopt(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    kind = type(optimizer)
    if optimizer not in _seen and getattr(torch.optim, kind.__name__, None) is kind:
        _seen.add(optimizer)
        adoption.accelerate_optimizer(optimizer, scaled=False)


_said = on()
if process_group.rank() == 0:
    tell(f"gallery_lib.plug: {_said}. gallery_lib.plug.off() undoes it")
