"""Convolutions in channels_last inside a compiled graph, and nowhere else.

A user's tensors keep the strides that they have in plain PyTorch: parameters, gradients, what a
model takes and what it returns. Between them this graph pass lays images out in channels_last, with
which convolutions and batch norms are faster on most devices. It puts a conversion in front of each
convolution that gets something else, and computes the strides of everything behind it anew. The
compiler makes one kernel of a conversion and what stands before it, such as autocast's cast.

The graph has no side effects at this point: each value is computed once and never written over. So
other strides cannot change values, as long as an operator does not look at them. One that may
(`view` of strides that do not allow it, `as_strided`, random numbers, operators and subgraphs of
users) gets its operands as they were traced.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from gallery_lib.compiler.passes.graph_pass import Pass, call, value_of, write

_aten = torch.ops.aten
_CLONE = _aten.clone.default
_IMAGES = {_aten.convolution.default: 2, _aten.convolution_backward.default: 3}
"""Convolutions, with the number of their leading arguments that are images or weights."""
_LOOK_AT_STRIDES = {
    _aten.as_strided.default,
    _aten.as_strided_scatter.default,
    _aten.view.dtype,
    _aten.view_as_complex.default,
    _aten.sym_stride.int,
    _aten.sym_stride.default,
    _aten.sym_storage_offset.default,
}
_NAMESPACES = ("aten", "prims", "gallery")
_NOT_MOVED = (
    torch.Tag.nondeterministic_seeded,  # random numbers are drawn in the order of memory
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


class _Rewriting:
    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._traced: dict[fx.Node, Any] = {}
        """Value that a node had with the strides as traced, for nodes that have others now."""
        self._converted: dict[fx.Node, fx.Node] = {}
        self._as_traced: dict[fx.Node, fx.Node] = {}

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op == "output":
                self._give_back(node)
            elif node.op == "call_function":
                self._visit(node)

    def _visit(self, node: fx.Node) -> None:
        converted = self._convert_images(node)
        moved = converted or any(one in self._traced for one in node.all_input_nodes)
        if not moved and not _makes_contiguous(node):
            return
        if _is_ours_in_place(node):  # its results are values of channels
            _note_inputs(node)
        elif not self._recompute(node):
            self._give_back(node)

    def _convert_images(self, node: fx.Node) -> bool:
        converted = False
        for place in range(_IMAGES.get(node.target, 0)):  # type: ignore[call-overload]
            image: Any = node.args[place]
            value = image.meta["val"]
            if value.dim() != 4 or value.is_contiguous(memory_format=torch.channels_last):
                continue
            if image not in self._converted:
                self._converted[image] = call(
                    _place_behind(image), _CLONE, image, memory_format=torch.channels_last
                )
            node.update_arg(place, self._converted[image])
            converted = True
        return converted

    def _recompute(self, node: fx.Node) -> bool:
        """Give `node` the strides that follow from its operands; return whether it takes them."""
        if not _may_move(node):
            return False
        if node.target is _CLONE and node.meta["val"].dim() == 4:
            node.kwargs = {}  # readers get the strides that they need
        try:
            value = value_of(node)
        except (RuntimeError, ValueError):  # a view that these strides do not allow
            return False
        if _strides(value) != _strides(node.meta["val"]):
            self._traced[node] = node.meta["val"]
            node.meta["val"] = value
        _note_inputs(node)
        return True

    def _give_back(self, node: fx.Node) -> None:
        for operand in node.all_input_nodes:
            if operand in self._traced and isinstance(self._traced[operand], Tensor):
                node.replace_input_with(operand, self._restored(operand))

    def _restored(self, node: fx.Node) -> fx.Node:
        if node not in self._as_traced:
            self._as_traced[node] = self._write_as_traced(node, self._traced[node])
        return self._as_traced[node]

    def _write_as_traced(self, node: fx.Node, traced: Any) -> fx.Node:
        place = _place_behind(node)
        if _is_view(node):
            moved = {n: self._restored(n) for n in node.all_input_nodes if n in self._traced}
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: moved.get(n, n))
            return call(place, node.target, *args, **kwargs)
        if traced.is_contiguous():  # without a view around it the compiler keeps views of it
            return call(place, _CLONE, node, memory_format=torch.contiguous_format)
        order = sorted(range(traced.dim()), key=traced.stride, reverse=True)
        back = [order.index(one) for one in range(traced.dim())]

        def laid_out(image: Tensor) -> Tensor:
            copied = image.permute(order).clone(memory_format=torch.contiguous_format)
            return copied.permute(back)

        return write(place, laid_out, node)  # type: ignore[no-any-return]


def _place_behind(node: fx.Node) -> fx.Node:
    """Return the first node behind `node` that is no input of the graph."""
    node = node.next
    while node.op == "placeholder":
        node = node.next
    return node


def _may_move(node: fx.Node) -> bool:
    """Return whether the values of a node do not depend on how its operands lie in memory."""
    if node.target is operator.getitem:
        return True
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace in _NAMESPACES
        and node.target not in _LOOK_AT_STRIDES
        and not any(tag in node.target.tags for tag in _NOT_MOVED)
    )


def _is_view(node: fx.Node) -> bool:
    """Return whether `node` is a view of an operand, or one of several."""
    target = node.args[0].target if node.target is operator.getitem else node.target  # type: ignore[union-attr]
    return isinstance(target, torch._ops.OpOverload) and any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in target._schema.returns
    )


def _makes_contiguous(node: fx.Node) -> bool:
    """Return whether `node` copies images that are in channels_last, so that they are not."""
    if node.target is not _CLONE or node.meta["val"].dim() != 4:
        return False
    image = node.args[0].meta["val"]  # type: ignore[union-attr]
    return node.meta["val"].is_contiguous() and image.is_contiguous(
        memory_format=torch.channels_last
    )


def _is_ours_in_place(node: fx.Node) -> bool:
    """Return whether `node` calls one of our operators that changes an argument."""
    called = node.args[0] if node.args else None
    return (
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and isinstance(called, torch._ops.OpOverload)
        and called.namespace == "gallery"
    )


def _note_inputs(node: fx.Node) -> None:
    """Have the compiler hand over operands as they lie now, where it keeps those of the tracing."""
    if "eager_input_vals" in node.meta:
        node.meta["eager_input_vals"] = fx.node.map_aggregate(
            (node.args, node.kwargs),
            lambda one: one.meta["val"] if isinstance(one, fx.Node) else None,
        )


def _strides(value: Any) -> list[str]:
    """Return the strides of the tensors in a value; those of unknown sizes by their formulas."""
    tensors = value if isinstance(value, (tuple, list)) else [value]
    return [str(tensor.stride()) for tensor in tensors if isinstance(tensor, Tensor)]


def rewrite(graph: fx.Graph) -> None:
    """Lay out the images and weights of the convolutions of `graph`."""
    if any(graph.find_nodes(op="call_function", target=target) for target in _IMAGES):
        _Rewriting(graph).run()


PASS = Pass("", "joint_custom_pre_pass", rewrite, devices=("cpu", "cuda"), needs_channels_last=True)
