"""Own batch norms in tests: kinds of layers, a layer that calls the operator, and runs with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from gallery_lib.compiler import backend, kernels_enabled
from gallery_lib.compiler.backend import compile_calls
from gallery_lib.compiler.passes.large_batch_norms import rewrite_every
from gallery_lib.kernels.batch_norm import batch_norm_relu

every_kind_of_layer = pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"momentum": None},
        {"momentum": 0.7, "eps": 0.1},
        {"affine": False},
        {"track_running_stats": False},
    ],
    ids=["plain", "cumulative average", "eps", "without weights", "without running statistics"],
)
"""Parametrisation with the arguments of torch's batch norms that change what a layer does."""


class BatchNormReLU(nn.BatchNorm2d):
    """relu(batch norm + residual): in training by our operator where `own` is set."""

    own = False

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if not self.own or not self.training:
            result = super().forward(x)
            return functional.relu(result if residual is None else result + residual)
        return batch_norm_relu(
            x, self.running_mean, self.running_var, self.weight, self.bias, residual=residual,
            batches=self.num_batches_tracked, momentum=self.momentum, eps=self.eps,
        )  # fmt: skip


def switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let accelerated runs with kernels have own batch norms of every size, and compile no more."""

    def by_the_pass(module: fx.GraphModule, inputs: Any) -> fx.GraphModule:
        rewrite_every(module.graph)
        module.recompile()
        return module

    def compiled(model: nn.Module, *_: Any) -> str:
        if kernels_enabled():
            torch._dynamo.reset()  # else sizes may count as dynamic, after other tests
            compile_calls([model], backend=by_the_pass)
        else:
            model._compiled_call_impl = model._call_impl  # type: ignore[assignment]
        return "own batch norms alone"

    monkeypatch.setitem(backend._BACKENDS, "inductor", compiled)
