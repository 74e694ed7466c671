"""Calls in a compiler's graph: what graph passes read off them, and write into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

_aten, _prims = torch.ops.aten, torch.ops.prims


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """An operator's, by name, with its defaults."""
    found = {}
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        given = (
            node.args[place]
            if place < len(node.args)
            else node.kwargs.get(argument.name, argument.default_value)
        )
        found[argument.name] = given
    return found


class Writer:
    """Writes calls of operators into a graph, in front of a node of it."""

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        self.graph, self.before = graph, before
        self._fake_mode = before.args[0].meta["val"].fake_mode  # type: ignore[union-attr]

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """The call's result."""
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        with self._fake_mode:
            node.meta["val"] = target(*_values(args), **_values(kwargs))
        return node

    def reshaped(self, tensor: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        """With other sizes: a view that says so, where it is one, else a copy.

        Of `reshape` the compiler does not know whether it is a view. It then may keep both tensor and view for the backward pass, and
        write over the one, which is done with, while the other is still to be read.
        """
        value, wanted = tensor.meta["val"], _values(list(sizes))
        try:
            with self._fake_mode:
                value.view(wanted)
        except (RuntimeError, ValueError):
            tensor = self(_aten.clone.default, tensor, memory_format=torch.contiguous_format)
        return self(_aten.view.default, tensor, list(sizes))

    def cast(self, tensor: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Of another type, if it is not already."""
        return (
            tensor
            if tensor.meta["val"].dtype is dtype
            else self(_prims.convert_element_type.default, tensor, dtype)
        )


def _values(arguments: Any) -> Any:
    return fx.map_arg(arguments, lambda node: node.meta["val"])


class OneAfterAnother(CustomGraphPass):
    """Several passes in a place of the compiler that takes one."""

    def __init__(self, passes: Sequence[CustomGraphPass]) -> None:
        self._passes = passes

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrites `graph` in place."""
        for each in self._passes:
            each(graph)

    def uuid(self) -> Any:
        """Changes with those of the passes."""
        return tuple(each.uuid() for each in self._passes)
