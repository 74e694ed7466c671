"""Activation checkpointing: a compiled model keeps fewer activations and computes the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler


def kept_bytes_and_gradients(keep: float | None) -> tuple[int, list[Tensor]]:
    """Return kept bytes and gradients of one step of eight layers; None: not compiled."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())))
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    if keep is not None:
        torch._dynamo.reset()
        compile_model(model, Compiler(keep_activations=keep), torch.device("cpu"))
    inputs, kept = torch.randn(512, 32), {}

    def keep_record(value: Tensor) -> Tensor:
        if value.untyped_storage()._cdata not in own:
            kept[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        return value

    model(inputs).sum().backward()  # compiles, so that the hooks below see only a step
    model.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(keep_record, lambda value: value):
        loss = model(inputs).sum()
    loss.backward()
    return sum(kept.values()), [copy.deepcopy(p.grad) for p in model.parameters()]


@pytest.mark.slow
def test_half_of_the_activations_are_kept_and_gradients_stay():
    everything, _ = kept_bytes_and_gradients(1.0)
    half, gradients = kept_bytes_and_gradients(0.5)
    assert half <= 0.7 * everything
    for ours, plain in zip(gradients, kept_bytes_and_gradients(None)[1], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
