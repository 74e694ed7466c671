"""Reading and writing of operator calls in a compiler's graph, for graph passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

_aten, _prims = torch.ops.aten, torch.ops.prims


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return an operator's arguments by name, with its defaults."""
    arguments = {}
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        value = (
            node.args[place]
            if place < len(node.args)
            else node.kwargs.get(argument.name, argument.default_value)
        )
        arguments[argument.name] = value
    return arguments


class Writer:
    """Writer of operator calls into a graph, in front of one of its nodes."""

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        """Write into `graph`, in front of the node `before`."""
        self.graph, self.before = graph, before
        self._fake_mode = before.args[0].meta["val"].fake_mode  # type: ignore[union-attr]

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Write a call of `target`; return the node of its result."""
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        with self._fake_mode:
            node.meta["val"] = target(*_values(args), **_values(kwargs))
        return node

    def reshaped(self, tensor: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        """Reshape with `aten.view` if the strides allow it, otherwise clone first.

        With `reshape` the compiler does not know whether the result is a view. It may then keep
        both tensor and view for the backward pass. It may write over one of them, which is done
        with, while the other is still to be read.
        """
        value, wanted = tensor.meta["val"], _values(list(sizes))
        try:
            with self._fake_mode:
                value.view(wanted)
        except (RuntimeError, ValueError):
            tensor = self(_aten.clone.default, tensor, memory_format=torch.contiguous_format)
        return self(_aten.view.default, tensor, list(sizes))

    def cast(self, tensor: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Convert `tensor` to `dtype`, if it has another one."""
        return (
            tensor
            if tensor.meta["val"].dtype is dtype
            else self(_prims.convert_element_type.default, tensor, dtype)
        )


def two_sides(value: Any) -> list[Any]:
    """Return [value for the height, value for the width]; a single value is for both."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * 2 if len(values) == 1 else values


def _values(arguments: Any) -> Any:
    return fx.map_arg(arguments, lambda node: node.meta["val"])


class OneAfterAnother(CustomGraphPass):
    """Several graph passes in order, where Inductor accepts one."""

    def __init__(self, passes: Sequence[CustomGraphPass]) -> None:
        """Run `passes` in this order."""
        self.passes = passes

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        for graph_pass in self.passes:
            graph_pass(graph)

    def uuid(self) -> Any:
        """Return an identifier that changes with those of the passes."""
        return tuple(graph_pass.uuid() for graph_pass in self.passes)
