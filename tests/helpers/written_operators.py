"""Graph passes in tests: what they write into graphs, and whether results are as exact as torch's.

A pass is its function `rewrite`, on a graph that Dynamo has traced of a model as it is written, or
on one of both passes as the compiler has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from gallery_lib.compiler.passes.graph_pass import Pass, Passes

Passed = Callable[..., tuple[Tensor, ...]]
CPU = torch.device("cpu")


def compiled_with(
    graph_pass: Callable[[fx.Graph], None], operator: Any, function: Any
) -> tuple[Any, list[int]]:
    """Return `function` compiled by the pass alone, and a list.

    After a call the list has, for each graph, how often `operator` is in it.
    """
    counts: list[int] = []

    def backend(module: fx.GraphModule, inputs: Any) -> Any:
        graph_pass(module.graph)
        module.graph.lint()
        counts.append(len(module.graph.find_nodes(op="call_function", target=operator)))
        module.recompile()
        return module

    torch._dynamo.reset()  # Dynamo counts all modules with torch's own forward as one function
    return torch.compile(function, backend=backend, fullgraph=True), counts


def both_passes(function: Callable[..., Tensor], number: int, **options: Any) -> Passed:
    """Return the forward and the backward pass of `function` as one function.

    It takes `number` operands, the gradient of the output, and further operands. It returns the
    output, and the gradients of the first `number` operands.
    """

    def passes(*given: Tensor) -> tuple[Tensor, ...]:
        parts = [each.detach().requires_grad_() for each in given[:number]]
        out = function(*parts, *given[number + 1 :], **options)
        return (out.detach(), *torch.autograd.grad(out, parts, given[number]))

    return passes


def convolution(**options: Any) -> Passed:
    """Return both passes of a convolution, and perhaps a bias behind its gradient."""

    def passes(image: Tensor, weight: Tensor, gradient: Tensor, *bias: Tensor) -> Any:
        parts = [each.detach().requires_grad_() for each in (image, weight, *bias)]
        out = functional.conv2d(*parts, **options)
        return (out.detach(), *torch.autograd.grad(out, parts, gradient))

    return passes


def operands(
    size: tuple[int, ...], out: int, kernel: tuple[int, int], dtype: torch.dtype, *,
    bias: bool = False, images: Any = torch.channels_last, weights: Any = torch.contiguous_format,
    **options: Any,
) -> list[Tensor]:  # fmt: skip
    """Return image, weight, the result's gradient and perhaps a bias, in these layouts."""
    torch.manual_seed(0)
    image = torch.randn(size)
    weight = torch.randn(out, size[1] // options.get("groups", 1), *kernel)
    weight /= (size[1] * kernel[0] * kernel[1]) ** 0.5
    gradient = torch.randn_like(functional.conv2d(image, weight, **options))
    parts = [
        each.to(dtype).to(memory_format=layout)
        for each, layout in ((image, images), (weight, weights), (gradient, images))
    ]
    return [*parts, torch.randn(out).to(dtype)] if bias else parts


def rewritten(
    rewrite: Callable[[fx.Graph], None], passes: Passed, given: list[Tensor]
) -> fx.GraphModule:
    """Return `passes` as a graph on which the pass was done.

    As in the compiler, nothing is detached in it.
    """
    module = make_fx(passes, tracing_mode="fake")(*given)
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    rewrite(module.graph)
    module.graph.lint()
    module.recompile()
    return module


def assert_as_exact(
    found: Iterable[Any], usual: Iterable[Any], exact: Iterable[Any], *, factor: float, more: float
) -> None:
    """Assert that each tensor is as near to `exact` as the usual one, times `factor`, or nearly."""
    for place, (ours, torchs, true) in enumerate(zip(found, usual, exact, strict=True)):
        assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape), place
        error, allowed = ((each.double() - true).norm() / true.norm() for each in (ours, torchs))
        assert error <= factor * allowed + more, (place, float(error), float(allowed))


class Counting(Passes):
    """A pass that notes `count` of each graph it has rewritten, and is never left out."""

    def __init__(self, one: Pass, count: Callable[[fx.Graph], Any]) -> None:
        super().__init__([one])
        self.count, self.noted = count, []

    def __call__(self, graph: fx.Graph) -> None:
        super().__call__(graph)
        self.noted.append(self.count(graph))

    def uuid(self) -> None:
        return None  # never taken from the cache, so that the pass runs
