"""Code compiled for any number of threads is shared by runs with different numbers of them."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler


class Scaled(nn.Module):
    """Layer with a number in its code, so that no cache knows it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), scale

    def forward(self, x: Tensor) -> Tensor:  # [N, 8] → [N, 8]
        return torch.tanh(self.linear(x) * self.scale)


def compiled_graphs(scale: float, threads: int) -> int:
    """Return how many graphs are compiled, not loaded, for one step with so many threads."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    torch.set_num_threads(threads)
    model = Scaled(scale)
    compile_model(model, Compiler(any_threads=True), torch.device("cpu"))
    before = counters["inductor"]["fxgraph_cache_miss"]
    model(torch.ones(4, 8)).sum().backward()
    return counters["inductor"]["fxgraph_cache_miss"] - before


@pytest.mark.slow
def test_another_number_of_threads_needs_no_other_code() -> None:
    threads, scale = torch.get_num_threads(), 1.0 + time.time_ns() % 10**9 / 10**9
    try:
        assert [compiled_graphs(scale, n) for n in (2, 1)] == [2, 0]  # forward and backward
    finally:
        torch.set_num_threads(threads)
