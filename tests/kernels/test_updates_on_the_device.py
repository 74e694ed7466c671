"""On a GPU an update with our scaler, optimizer and schedule equals torch's, without a sync.

What is saved there goes on elsewhere.
"""

from __future__ import annotations

import pytest
import torch
from optim.training import OVERFLOW_AT, PAIRS, model, warmup
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.optim.grad_scaler import GradScaler, Updates

pytestmark = pytest.mark.gpu
STEPS = 60


def run(kind: str, pair, device: torch.device) -> tuple[list[torch.Tensor], Updates]:
    """Return losses and updates, all `ours` or all torch's.

    Ours run under the rule that whatever waits for the device raises.
    """
    net = model().to(device)
    optimizer = pair.ours(net.parameters()) if kind == "ours" else pair.theirs(net.parameters())
    scaler = (GradScaler if kind == "ours" else torch.amp.GradScaler)(
        "cuda", init_scale=2.0**10, growth_interval=20
    )
    updates = Updates(optimizer, scaler, LambdaLR(optimizer, warmup), 0.3)
    inputs = torch.randn(STEPS, 16, 12, generator=torch.Generator().manual_seed(0)).to(device)
    labels, losses = inputs[:, :, :4].argmax(2), []
    for step in range(STEPS):
        loss = torch.nn.functional.cross_entropy(net(inputs[step]), labels[step])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step in OVERFLOW_AT:
            net[0].weight.grad.fill_(torch.inf)
        # The first step compiles.
        torch.cuda.set_sync_debug_mode("error" if kind == "ours" and step > 0 else "default")
        try:
            updates.take()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        losses.append(loss.detach())
    return losses, updates


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_updates_do_not_wait_and_are_torchs(pair, cuda_kernels):
    ours, chosen = run("ours", pair, cuda_kernels)
    theirs, other = run("torch's", pair, cuda_kernels)
    torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), rtol=1e-3, atol=1e-4)
    assert (
        chosen.skipped_steps() == other.skipped_steps() == sum(step < STEPS for step in OVERFLOW_AT)
    )
    assert chosen.scaler.state_dict() == other.scaler.state_dict()
    assert chosen.schedule.state_dict() == other.schedule.state_dict()


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_fused_optimizers_state_goes_on_wherever_it_is_loaded(name, where, cuda_kernels):
    inputs = torch.randn(12, 16, 12, generator=torch.Generator().manual_seed(0))

    def made(device):
        net = model().to(device)
        return net, getattr(torch.optim, name)(net.parameters(), lr=1e-2)

    def trained(net, optimizer, steps) -> list[float]:
        losses = []
        for step in steps:
            optimizer.zero_grad()
            loss = net(inputs[step].to(net[0].weight.device)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    (plain, untouched), (net, optimizer) = made("cpu"), made(cuda_kernels)
    said = accelerate_optimizer(optimizer, scaled=False)
    assert said == f"{name} takes torch's fused form on {cuda_kernels}."
    losses = trained(net, optimizer, range(4))
    for device in (where, cuda_kernels):
        assert optimizer.state_dict()["param_groups"][0]["fused"] is None
        other, loaded = made(device)
        accelerate_optimizer(loaded, scaled=False)
        other.load_state_dict(net.state_dict())
        loaded.load_state_dict(optimizer.state_dict())
        assert loaded.param_groups[0]["fused"] is (None if device == "cpu" else True)
        done = len(losses)
        losses += trained(other, loaded, range(done, done + 4))
        net, optimizer = other, loaded
    assert losses == pytest.approx(trained(plain, untouched, range(12)), rel=1e-3)
