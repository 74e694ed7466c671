"""On a GPU an update with our scaler, optimizer and schedule equals torch's, without a sync."""

from __future__ import annotations

import pytest
import torch
from optim.training import OVERFLOW_AT, PAIRS, model, warmup
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.optim.updates import Updates

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
