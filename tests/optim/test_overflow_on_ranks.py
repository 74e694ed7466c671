"""On two real processes all ranks skip the same steps, whichever rank overflows.

Scale, schedule and losses stay together.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from optim.training import BY_NAME, OVERFLOW_AT, SCALING, STEPS, losses, model, warmup
from ranks import Ranks
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.optim.grad_scaler import Updates

RUNS = [*((name, True) for name in BY_NAME if name != "Adam"), ("AdamW", False), ("SGD", False)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(processes=2, hosts=1) as ranks:
        yield ranks


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize(("name", "before"), RUNS)
def test_ranks_skip_the_same_steps_and_train_as_one_process_does_with_torchs_classes(
    ranks: Ranks, name: str, before: bool
) -> None:
    seen, other = ranks.call("overflow.run", name, before)
    assert seen == other
    before = [0, *seen["skipped"]]
    skipped = [step for step in range(STEPS) if before[step + 1] > before[step]]
    assert skipped == list(OVERFLOW_AT)
    net = model(torch.float64)
    optimizer = BY_NAME[name].theirs(net.parameters())
    scaler = torch.amp.GradScaler("cpu", **SCALING)
    updates = Updates(optimizer, scaler, LambdaLR(optimizer, warmup), 0.3)
    expected, scales, rates = [], [], []
    for step in range(STEPS):
        expected += losses(net, optimizer, range(step, step + 1), scaler, OVERFLOW_AT, updates.take)
        scales.append(scaler.get_scale())
        rates.append(optimizer.param_groups[0]["lr"])
    assert seen["losses"] == pytest.approx(expected, rel=1e-5)
    assert seen["scales"] == scales
    assert seen["rates"] == pytest.approx(rates, rel=1e-6)
