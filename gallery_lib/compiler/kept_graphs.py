"""Backward passes of compiled models that keep their graphs: `loss.backward(retain_graph=True)`.

A compiled backward pass may write over what the forward pass has saved for it ("donated buffers").
That saves memory, and torch refuses to keep the graph of such a pass. Here a pass that is to keep
its graph gets copies of these tensors, and only it pays for them. Read in torch 2.11 and 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Call = Callable[..., Any]

_allowed: WeakSet[type] = WeakSet()
"""Autograd functions of compiled graphs whose backward passes may keep their graphs."""


def allow_kept_graphs(compiled: Call) -> Call:
    """Let backward passes through what a compiled function returns keep their graphs."""
    from torch._dynamo.utils import counters

    graphs = -1

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal graphs
        result = compiled(*args, **kwargs)
        if torch.is_grad_enabled() and counters["stats"]["unique_graphs"] != graphs:
            graphs = counters["stats"]["unique_graphs"]
            _look_through(result)
        return result

    return call


def _look_through(result: Any) -> None:
    """Find the compiled graphs that a result came from."""
    nodes = [one.grad_fn for one in pytree.tree_leaves(result) if isinstance(one, Tensor)]
    seen: set[Any] = {None}
    while nodes:
        if (node := nodes.pop()) in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
        kind = getattr(type(node), "_forward_cls", None)
        if hasattr(kind, "_backward_impl") and kind not in _allowed:
            _allowed.add(kind)
            _copy_donated(kind)


def _copy_donated(kind: Any) -> None:
    """Give the backward pass of an autograd function copies of what it would write over."""
    plain = kind._backward_impl

    def backward(ctx: Any, all_args: list[Any]) -> Any:
        from torch._functorch import config as functorch_config

        if not torch._C._autograd._get_current_graph_task_keep_graph():
            return plain(ctx, all_args)
        for place in kind.metadata.bw_donated_idxs or ():
            all_args[place] = all_args[place].clone()
        # As far as torch knows nothing is written over; code compiled now does not do it.
        with functorch_config.patch(donated_buffer=False):
            return plain(ctx, all_args)

    kind._backward_impl = staticmethod(backward)
