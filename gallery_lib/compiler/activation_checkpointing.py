"""Activation checkpointing by the compiler, for models that do not fit into memory otherwise.

A part of the activations is kept for the backward pass, the rest is recomputed. torch's partitioner
chooses the activations that are cheapest to recompute, graph by graph, from the operations that
each takes. Results change only by the order of operations.
"""

from __future__ import annotations

import functools
from typing import Any


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
