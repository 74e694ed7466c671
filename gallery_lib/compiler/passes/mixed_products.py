"""Products by fp32 weights under autocast on the CPU, without copies of the weights.

Under autocast each step copies a weight to bfloat16 and its gradient back to fp32. Where a batch
has few rows, as 8 images have in a classifier, these copies move more memory than the products. An
operator of ours reads the weight as it lies, rounds it on the way, and stores the gradient in fp32.
The forward graph then keeps no copy for the backward graph. Values are autocast's.

A weight is read as it lies if everything that reads its copy is a product of few rows. A gradient
is stored in fp32 if nothing else reads it in bfloat16. Left alone are small weights, and sizes that
change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from gallery_lib.compiler.passes.graph_pass import Pass, call
from gallery_lib.kernels import mixed_product
from gallery_lib.system import hardware

_aten, _prims = torch.ops.aten, torch.ops.prims
_CAST = _prims.convert_element_type.default
_PRODUCTS = (_aten.mm.default, _aten.addmm.default)
_VIEWS = (_aten.permute.default, _aten.t.default, _aten.view.default)


@dataclass(frozen=True)
class Limits:
    """Sizes for which the operator gains.

    Above so many rows of a batch the products are longer and the copies as long: `weights` is for
    products by a weight, `gradients` for its gradient. A weight of fewer `elements` stays in the
    cache.
    """

    weights: int
    gradients: int
    elements: int = 1 << 19


def limits() -> Limits:
    """Return the limits of this processor.

    With AMX torch's products are faster than the operator's, which uses AVX-512. There it is for
    batches whose products take less time than the copies. That was not measured.
    """
    return Limits(32, 64) if "amx_bf16" in hardware.cpu_flags() else Limits(512, 1024)


def rewrite(graph: fx.Graph) -> None:
    """Multiply by weights as they lie, within the limits of this processor."""
    within = limits()
    products = {
        node: product
        for target in _PRODUCTS
        for node in graph.find_nodes(op="call_function", target=target)
        if (product := _product(node, within)) is not None
    }
    weights = _weights_read_as_they_lie(products)
    for node, product in products.items():
        _rewrite(graph, node, product, weights)
    for copy in weights:
        _erase_unread(graph, copy)


@dataclass(frozen=True)
class _Product:
    """A product that the operator takes.

    `copied` is the copy that its right side is a view of, if its weight may be read as it lies, and
    `views` are what makes it one. `last` is the cast of the result to fp32, if the result may be
    stored so, and `between` the views of the result before it.
    """

    copied: fx.Node | None
    views: tuple[fx.Node, ...]
    last: fx.Node | None
    between: tuple[fx.Node, ...]


def _product(node: fx.Node, within: Limits) -> _Product | None:
    """Return a product of bfloat16 matrices on the CPU, of sizes that are known; else None."""
    if node.kwargs:  # addmm's factors
        return None
    *bias, left, right = given = [each for each in node.args if isinstance(each, fx.Node)]
    values = [value for each in (*given, node) if isinstance(value := each.meta["val"], Tensor)]
    if len(values) != 1 + len(node.args):
        return None
    if {(value.dtype, value.device.type) for value in values} != {(torch.bfloat16, "cpu")}:
        return None
    if not all(isinstance(size, int) and size for value in values for size in value.shape):
        return None
    if bias and bias[0].meta["val"].dim() != 1:
        return None
    (m, k), n = left.meta["val"].shape, right.meta["val"].shape[1]
    (copied, views), (last, between) = _behind_views(right), _only_reader(node)
    if m > within.weights or k * n < within.elements:
        copied = None
    if k > within.gradients or m * n < within.elements:
        last = None
    return _Product(copied, views, last, between)


def _behind_views(node: fx.Node) -> tuple[fx.Node | None, tuple[fx.Node, ...]]:
    """Return the cast of an fp32 input of the graph that `node` is a view of, and the views."""
    views: list[fx.Node] = []
    while node.op == "call_function" and node.target in _VIEWS:
        views.insert(0, node)
        node = node.args[0]  # type: ignore[assignment]
    return (node, tuple(views)) if _is_copy(node) else (None, ())


def _is_copy(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not _CAST:
        return False
    weight = node.args[0]
    return (
        isinstance(weight, fx.Node)
        and weight.op == "placeholder"
        and isinstance(weight.meta.get("val"), Tensor)
        and weight.meta["val"].dtype is torch.float32
    )


def _only_reader(node: fx.Node) -> tuple[fx.Node | None, tuple[fx.Node, ...]]:
    """Return the cast to fp32 that alone reads `node`, through views, and the views."""
    between: list[fx.Node] = []
    while len(node.users) == 1:
        (node,) = node.users
        if node.op != "call_function":
            break
        if node.target is _CAST and node.args[1] is torch.float32:
            return node, tuple(between)
        if node.target not in _VIEWS:
            break
        between.append(node)
    return None, ()


def _weights_read_as_they_lie(products: dict[fx.Node, _Product]) -> set[fx.Node]:
    """Return the copies that are read by products of few rows alone."""
    copies = {product.copied for product in products.values() if product.copied is not None}

    def readers(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Yield what reads a copy or a view of it, with that view."""
        for user in node.users:
            if user.op == "call_function" and user.target in _VIEWS:
                yield from readers(user)
            else:
                yield user, node

    def taken(user: fx.Node, view: fx.Node) -> bool:
        product = products.get(user)
        *others, right = user.args
        is_taken = product is not None and product.copied is not None
        return is_taken and right is view and view not in others

    return {copy for copy in copies if all(taken(*reader) for reader in readers(copy))}


def _rewrite(graph: fx.Graph, node: fx.Node, product: _Product, weights: set[fx.Node]) -> None:
    as_it_lies = product.copied in weights
    if not as_it_lies and product.last is None:
        return
    write = functools.partial(call, node)
    *bias, left, right = node.args  # by now, since a neighbour may have been rewritten
    if as_it_lies:
        assert product.copied is not None
        right = _viewed(write, product.copied.args[0], product.views)
    ours = torch.ops.gallery.mixed_product.default
    added = bias[0] if bias else None
    if product.last is None:
        node.replace_all_uses_with(write(ours, left, right, added, False))
        graph.erase_node(node)
        return
    views = product.between
    if not bias and all(_swaps(view) for view in views):
        if len(views) % 2:  # the other way round the result lies as it is read
            left, right = (write(_aten.permute.default, side, [1, 0]) for side in (right, left))
        views = ()
    result = write(ours, left, right, added, True)
    product.last.replace_all_uses_with(_viewed(write, result, views))
    for done in (product.last, *reversed(product.between), node):
        graph.erase_node(done)


def _erase_unread(graph: fx.Graph, copy: fx.Node) -> None:
    for view in list(copy.users):
        _erase_unread(graph, view)
    graph.erase_node(copy)


def _swaps(view: fx.Node) -> bool:
    """Return whether a view swaps the rows and columns of a matrix."""
    of_two = view.meta["val"].dim() == 2
    if view.target is _aten.permute.default:
        return of_two and list(view.args[1]) in ([1, 0], [-1, 0], [1, -2])  # type: ignore[arg-type]
    return of_two and view.target is _aten.t.default


def _viewed(write: Callable[..., fx.Node], node: Any, views: tuple[fx.Node, ...]) -> fx.Node:
    """Return `node` with `views` of another node of its shape."""
    for view in views:
        node = write(view.target, node, *view.args[1:])
    return node  # type: ignore[no-any-return]


PASS = Pass(
    "mixed_products",
    "joint_custom_pre_pass",
    rewrite,
    reason_not_applied=mixed_product.reason_not_available,
)
