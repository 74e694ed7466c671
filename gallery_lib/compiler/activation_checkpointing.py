"""Activation checkpointing by the compiler: a part of the activations is kept for the backward pass, the rest computed again.

For models that do not fit into memory otherwise. Which activations are the cheapest to compute again is decided by torch's
partitioner, graph by graph, from the operations that each takes; results do not change but for the order of operations.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def inductor_keeping(part: float) -> str:
    """The name of a torch.compile backend that does what `inductor` does, and keeps `part` (0 to 1) of the activations."""
    from torch._dynamo import register_backend

    def backend(graph: Any, inputs: Any, *, options: dict[str, Any] | None = None) -> Any:
        import torch._functorch.config as autograd_config
        from torch._inductor.compile_fx import compile_fx

        with autograd_config.patch(activation_memory_budget=part):
            return compile_fx(graph, inputs, config_patches=options)

    name = f"gallery_inductor_keeping_{part:g}"
    register_backend(backend, name=name)
    return name
