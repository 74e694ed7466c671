"""Reading and writing of operator calls in a compiler's graph, for graph passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses import FakeTensor

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

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Write a call of `target`; return the node of its result."""
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = value_of(node)
        return node

    def reshaped(self, tensor: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        """Reshape with `aten.view` if the strides allow it, otherwise clone first.

        With `reshape` the compiler does not know whether the result is a view. It may then keep
        both tensor and view for the backward pass. It may write over one of them, which is done
        with, while the other is still to be read.
        """
        value, wanted = tensor.meta["val"], _values(list(sizes))
        try:
            with value.fake_mode:
                value.view(wanted)
        except (RuntimeError, ValueError):
            tensor = self(_aten.clone.default, tensor, memory_format=torch.contiguous_format)
        return self(_aten.view.default, tensor, list(sizes))

    def laid_out_as(self, image: fx.Node, like: torch.Tensor) -> fx.Node:
        """Return `image` contiguous if `like` is, as code behind it was traced.

        The pass `channels_last` removes the copy, where nothing needs it.
        """
        if not like.is_contiguous() or image.meta["val"].is_contiguous():
            return image
        return self(_aten.clone.default, image, memory_format=torch.contiguous_format)

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


def behind_convolutions(graph: fx.Graph) -> set[fx.Node]:
    """Return what reads a convolution's result, directly or not, in a graph as a model was written.

    That is what the pass `channels_last` lays out later. What is in that layout already counts too.
    """
    behind: set[fx.Node] = set()
    for node in graph.nodes:
        if (
            node.target is torch.conv2d
            or _is_channels_last(node.meta.get("example_value"))
            or any(one in behind for one in node.all_input_nodes)
        ):
            behind.add(node)
    return behind


def _is_channels_last(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last)
    )


def as_traced(graph: fx.Graph, result: fx.Node, replaced: fx.Node) -> fx.Node:
    """Return `result`, which is in channels_last, contiguous if the node that it replaces is.

    What the model's own code does with it (`view`, say) then stays allowed. The pass
    `channels_last` removes the conversion, if nothing needs it.
    """
    if not replaced.meta["example_value"].is_contiguous():
        return result
    return graph.call_method("contiguous", (result,))


def value_of(node: fx.Node) -> Any:
    """Return what a call of an operator returns for its operands as they are known now.

    Raises:
        RuntimeError, ValueError: of the operator, for operands that it does not take.
    """
    known = (one.meta.get("val") for one in node.graph.nodes)
    with next(value.fake_mode for value in known if isinstance(value, FakeTensor)):
        return node.target(*_values(node.args), **_values(node.kwargs))  # type: ignore[operator]


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
