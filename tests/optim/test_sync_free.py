"""Our sync-free optimizers train as torch's do.

LAMB is compared with timm's. `test_forms.py` has weights and gradients of any kind,
`test_grad_scaler.py` checkpoints and skipped steps.
"""

from __future__ import annotations

import pytest
import torch
from optim.training import ADAM, PAIRS, losses, model
from refusal import refused
from torch import nn

from gallery_lib.optim import sync_free

EACH = pytest.mark.parametrize("pair", [*PAIRS, ADAM], ids=lambda pair: pair.name)


@EACH
def test_200_steps_have_the_losses_of_torchs_optimizer(pair):
    """In fp64 nothing but the order of operations differs."""
    net, other = model(torch.float64), model(torch.float64)
    ours = losses(net, pair.ours(net.parameters()))
    theirs = losses(other, pair.theirs(other.parameters()))
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert ours[-1] < 0.6 * ours[0]


def test_a_learning_rate_in_float64_on_the_host_stays_exact():
    values = []
    for package in (sync_free, torch.optim):
        weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = package.SGD([weight], lr=torch.tensor(0.1, dtype=torch.float64))
        weight.grad = torch.full_like(weight, 1 / 3)
        optimizer.step()
        values.append(weight.detach())
    torch.testing.assert_close(*values, rtol=1e-15, atol=0)


def test_lamb_refuses_what_no_class_of_torchs_could_take_and_changes_nothing():
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, 2))
    optimizer = sync_free.LAMB([{"params": [first]}, {"params": [second]}], lr=0.1)

    def closure():
        first.grad, second.grad = torch.ones(3), torch.ones(3, 2).to_sparse()
        return 1.0

    with refused("params", "dense"):
        optimizer.step(closure)
    assert bool((first == 1).all()) and not optimizer.state


@EACH
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
