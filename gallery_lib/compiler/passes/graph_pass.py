"""What graph passes share: their declaration, several of them as one, and how they write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.pattern_matcher import fwd_only
from torch._subclasses import FakeTensor

from gallery_lib import kernels
from gallery_lib.system import hardware

_aten = torch.ops.aten
_OF_CHECKPOINT = ("recompute", "ac_graph_id")
"""Notes that torch's partitioner reads, of nodes under activation checkpointing."""
Stage = Literal[
    "pre_grad_custom_pass",  # the model as it was written, before its gradients are known
    "joint_custom_pre_pass",  # forward and backward pass in one graph
    "post_grad_custom_pre_pass",  # one of the two
    "post_grad_custom_post_pass",  # the same, after all other passes
]
"""Inductor's option that takes the pass."""


@dataclass(frozen=True)
class Pass:
    """A graph pass, and where it is used."""

    option: str
    """Name in `Compiler.without`; '' where it cannot be left out."""
    stage: Stage
    rewrite: Callable[[fx.Graph], None]
    """Function that rewrites a graph in place."""
    devices: tuple[str, ...] = ("cpu",)
    needs_channels_last: bool = False
    reason_not_applied: Callable[[], str | None] = lambda: None
    """Function that returns why the pass is of no use on this machine; None where it is of use."""


class Passes(CustomGraphPass):
    """Graph passes in order, where Inductor accepts one."""

    def __init__(self, passes: Iterable[Pass], only_on: str = "") -> None:
        """Run `passes` in this order; with `only_on`, in graphs of that type of device alone."""
        self.passes, self.only_on = tuple(passes), only_on

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        if self.only_on and _device_types(graph) - {self.only_on}:
            return
        for one in self.passes:
            one.rewrite(graph)

    def uuid(self) -> Any:
        """Return a part of the key of Inductor's cache, which changes with all that passes do.

        Passes go by the processor's instructions. Whether backward passes may keep their graphs is
        not in torch's own part: code that writes over what is to be kept would come from the cache,
        and gradients be wrong (benchmarks/notes/torch-defects.md).
        """
        folders = (Path(__file__).parent, Path(kernels.__file__).parent)
        sources = tuple(str(path) for folder in folders for path in sorted(folder.glob("*.py")))
        named = [(one.rewrite.__module__, one.rewrite.__qualname__) for one in self.passes]
        flags = sorted(hardware.cpu_flags())
        kept = functorch_config.donated_buffer
        return named, self.only_on, flags, get_hash_for_files(sources), kept


def _device_types(graph: fx.Graph) -> set[str]:
    values = (node.meta.get("val", node.meta.get("example_value")) for node in graph.nodes)
    return {value.device.type for value in values if isinstance(value, Tensor)}


def replace(node: fx.Node, target: Any, *args: Any) -> None:
    """Put a call of `target` in the place of `node`, with its metadata."""
    with node.graph.inserting_before(node):
        put_in_place_of(node, node.graph.call_function(target, args))


def put_in_place_of(node: fx.Node, result: fx.Node) -> None:
    """Let `result` stand for `node`, which is erased."""
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return an operator's arguments by name, with its defaults."""
    arguments = {}
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        given = node.kwargs.get(argument.name, argument.default_value)
        arguments[argument.name] = node.args[place] if place < len(node.args) else given
    return arguments


def wanted_gradients(node: fx.Node) -> list[bool] | None:
    """Return which gradients of a backward pass are read; None where others than they are read.

    What reads none of them is erased.
    """
    if any(user.target is not operator.getitem for user in node.users):
        return None
    wanted = list(arguments_of(node)["output_mask"])
    for user in [user for user in node.users if not wanted[user.args[1]]]:  # type: ignore[index]
        if user.users:
            return None
        node.graph.erase_node(user)
    return wanted


def take_gradients(node: fx.Node, wanted: list[bool], gradients: dict[int, fx.Node]) -> None:
    """Let these nodes, by their place, stand for the gradients of a backward pass.

    It is left with the other ones that are wanted, or erased.
    """
    if not gradients:
        return
    for user in list(node.users):
        if user.args[1] in gradients:
            user.replace_all_uses_with(gradients[user.args[1]])  # type: ignore[index]
            node.graph.erase_node(user)
    left = [flag and place not in gradients for place, flag in enumerate(wanted)]
    if not any(left):
        node.graph.erase_node(node)
        return
    place = [argument.name for argument in node.target._schema.arguments].index("output_mask")  # type: ignore[union-attr]
    node.update_arg(place, left)
    node.meta["val"] = tuple(
        value if flag else None for value, flag in zip(node.meta["val"], left, strict=True)
    )


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call of torch's Python function by name, with its defaults."""
    pair = node.normalized_arguments(torch.nn.Module(), normalize_to_only_use_kwargs=True)
    assert pair is not None
    return dict(pair.kwargs)


def call(before: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Write a call of an operator in front of a node; return the node of its result."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta["val"] = value_of(node)
    return node


def write(before: fx.Node, function: Callable[..., Any], *arguments: Any) -> Any:
    """Write what `function` does, in plain torch, in front of a node; return nodes of its results.

    Arguments are nodes and constants. It is traced with the values that are known of the nodes, and
    decomposed as the compiler does with code of users, but for products.
    """
    nodes: list[fx.Node] = []
    fx.map_arg(arguments, nodes.append)

    def on_values(*values: Any) -> Any:
        value_of_node = dict(zip(nodes, values, strict=True))
        with torch.autocast("cpu", enabled=False):
            return function(*fx.map_arg(arguments, lambda node: value_of_node[node]))

    values = [node.meta["val"] for node in nodes]
    with _fake_mode(before.graph):
        traced = fwd_only(on_values, values, get_decomp_fn=_decompositions).graph
    inputs = traced.find_nodes(op="placeholder")
    copies = dict(zip(inputs, nodes, strict=True))
    with before.graph.inserting_before(before):
        results = before.graph.graph_copy(traced, copies)
    # What is to be computed again in a backward pass (torch.utils.checkpoint) stays so.
    kept = {name: before.meta[name] for name in _OF_CHECKPOINT if name in before.meta}
    for node in copies.keys() - set(inputs):
        copies[node].meta = {"val": node.meta["val"], **kept}
    return results


def _decompositions() -> dict[Any, Any]:
    products = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default)
    return {name: one for name, one in select_decomp_table().items() if name not in products}


def two_sides(value: Any) -> list[Any]:
    """Return [value for the height, value for the width]; a single value is for both."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * 2 if len(values) == 1 else values


def example(node: Any) -> Tensor | None:
    """Return the tensor of a node as it was traced in a graph of the model as written, or None."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def behind_convolutions(graph: fx.Graph) -> set[fx.Node]:
    """Return what reads a convolution's result, directly or not, in a graph as a model was written.

    That is what the pass `channels_last` lays out later. What is in that layout already counts too.
    """
    behind: set[fx.Node] = set()
    for node in graph.nodes:
        value = example(node)
        laid_out = value is not None and value.dim() == 4
        if (
            node.target is torch.conv2d
            or (laid_out and value.is_contiguous(memory_format=torch.channels_last))  # type: ignore[union-attr]
            or any(one in behind for one in node.all_input_nodes)
        ):
            behind.add(node)
    return behind


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
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    with _fake_mode(node.graph):
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _fake_mode(graph: fx.Graph) -> Any:
    known = (one.meta.get("val") for one in graph.nodes)
    return next(value.fake_mode for value in known if isinstance(value, FakeTensor))
