"""Operators that a graph pass writes into the graph of a function that Dynamo has traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


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
