"""Steps of the sync-free optimizers that are called from compiled code."""

from __future__ import annotations

import pytest
import torch
from optim.training import ADAM, PAIRS
from torch import nn


@pytest.mark.parametrize("pair", [*PAIRS, ADAM], ids=lambda pair: pair.name)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_that_is_called_below_the_compiler_is_torchs(pair, groups):
    def weights_after(kind, compiled):
        generator = torch.Generator().manual_seed(0)
        weights = [nn.Parameter(torch.randn(5, generator=generator)) for _ in range(2)]
        optimizer = kind([{"params": [w]} for w in weights] if groups == 2 else weights)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(5, generator=generator)
            step()
        return [weight.detach() for weight in weights]

    torch._dynamo.reset()
    ours, theirs = weights_after(pair.ours, True), weights_after(pair.theirs, False)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
