"""A schedule behind SkipAware gives each update torch's learning rate.

It does not matter when the host hears of skipped steps.
"""

from __future__ import annotations

import functools

import pytest
import torch
from optim.training import PAIRS, NothingWaits, model, warmup
from refusal import refused
from torch.optim import lr_scheduler

from gallery_lib.optim import schedules, skip_aware_schedule, sync_free
from gallery_lib.optim.device_count import DeviceCount
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.optim.skip_aware_schedule import SkipAware

SKIPPED = (0, 3, 4, 5, 6, 7, 20, 39)
STEPS = 40
LAG = 3


class Late(DeviceCount):
    """A count of which the host hears late, as from a device that is behind.

    It hears of an addition only when LAG more have been made.
    """

    def known(self):
        self.seen = getattr(self, "seen", [(0, 0)])
        latest = super().known()
        if latest[0] > self.seen[-1][0]:
            self.seen.append(latest)
        return self.seen[max(0, len(self.seen) - 1 - LAG)]

    def wait(self):
        return super().known()[1]


@pytest.fixture(params=["at once", "late"])
def news(request, monkeypatch):
    monkeypatch.setattr(
        skip_aware_schedule, "DeviceCount", {"at once": DeviceCount, "late": Late}[request.param]
    )
    return request.param


SCHEDULES = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, [warmup, lambda update: 0.9**update]
    ),
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 50),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
            lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [5],
    ),
    **{
        f"{name} of a run": functools.partial(
            schedules.scheduler, name, steps=STEPS, warmup_steps=5
        )
        for name in schedules.WITH_LENGTH
    },
}
EACH = pytest.mark.parametrize("schedule", SCHEDULES)


def optimizer_of(net=None):
    net = net or model()
    return PAIRS[1].ours(
        [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[3].parameters(), "lr": 0.3}]
    )


def step(optimizer, schedule, skipped: bool) -> None:
    """Take one step whose flag is set, as a scaler sets it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(float(skipped))
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf
    with NothingWaits():
        schedule.step()


def rates(optimizer) -> list[float]:
    """Return the learning rates that the next step will use."""
    own = [group["lr"] for group in optimizer.param_groups]
    return (
        own
        if optimizer.learning_rates is None
        else [rate.item() for rate in optimizer.learning_rates]
    )


def torchs(name: str, updates: int):
    """Return torch's schedule after so many updates, and its rates."""
    optimizer = optimizer_of()
    schedule = SCHEDULES[name](optimizer)
    for _ in range(updates):
        optimizer.step()
        schedule.step()
    return schedule, [group["lr"] for group in optimizer.param_groups]


@EACH
def test_every_step_has_the_learning_rate_of_the_updates_done_before_it(schedule, news):
    optimizer = optimizer_of()
    ours = SkipAware(SCHEDULES[schedule](optimizer))
    updates = 0
    for number in range(STEPS):
        step(optimizer, ours, number in SKIPPED)
        updates += number not in SKIPPED
        assert rates(optimizer) == pytest.approx(torchs(schedule, updates)[1], rel=1e-6), (
            f"after step {number}"
        )
    assert updates == STEPS - len(SKIPPED)


@EACH
def test_state_dicts_are_torchs_at_the_updates_done_and_are_continued_by_either(schedule, news):
    optimizer = optimizer_of()
    ours = SkipAware(SCHEDULES[schedule](optimizer))
    for number in range(8):
        step(optimizer, ours, number in SKIPPED)
    theirs, expected = torchs(schedule, 2)
    saved, saved_optimizer = ours.state_dict(), optimizer.state_dict()
    assert (
        saved["last_epoch"] == theirs.state_dict()["last_epoch"]
        and saved["_last_lr"] == theirs.state_dict()["_last_lr"] == expected
    )
    assert [group["lr"] for group in saved_optimizer["param_groups"]] == expected

    other_optimizer = optimizer_of()
    other = SkipAware(SCHEDULES[schedule](other_optimizer))
    other_optimizer.load_state_dict(saved_optimizer)
    other.load_state_dict(saved)
    plain_optimizer = optimizer_of()
    plain = SCHEDULES[schedule](plain_optimizer)
    plain_optimizer.load_state_dict(saved_optimizer)
    plain.load_state_dict(saved)
    for number in range(10):
        step(other_optimizer, other, number == 4)
        if number != 4:
            plain_optimizer.step()
            plain.step()
    assert rates(other_optimizer) == pytest.approx(rates(plain_optimizer), rel=1e-6)
    assert rates(plain_optimizer) == pytest.approx(torchs(schedule, 11)[1], rel=1e-12)


def test_the_state_of_the_optimizer_alone_has_the_rates_of_the_updates_done(news):
    optimizer = optimizer_of()
    ours = SkipAware(SCHEDULES["StepLR"](optimizer))
    for number in range(8):
        step(optimizer, ours, number in SKIPPED)
    assert [group["lr"] for group in optimizer.state_dict()["param_groups"]] == torchs("StepLR", 2)[
        1
    ]
    step(optimizer, ours, False)
    assert rates(optimizer) == pytest.approx(torchs("StepLR", 3)[1])


def test_when_the_device_is_further_behind_than_the_table_is_long_the_host_waits(monkeypatch):
    monkeypatch.setattr(skip_aware_schedule, "DeviceCount", Late)
    monkeypatch.setattr(skip_aware_schedule, "AHEAD", LAG)
    test_every_step_has_the_learning_rate_of_the_updates_done_before_it("StepLR", "late")


def test_without_scaling_it_is_the_wrapped_schedule():
    optimizer = optimizer_of()
    ours = SkipAware(SCHEDULES["StepLR"](optimizer))
    for _ in range(7):
        optimizer.step()
        ours.step()
    assert optimizer.learning_rates is None
    assert ours.get_last_lr() == rates(optimizer) == torchs("StepLR", 7)[1]


def test_what_cannot_follow_on_the_device_is_refused():
    optimizer = optimizer_of()
    with refused("scheduler", "ReduceLROnPlateau"):
        SkipAware(lr_scheduler.ReduceLROnPlateau(optimizer))
    cycle = SkipAware(lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20))
    with refused("cycle_momentum", "OneCycleLR", "cycle_momentum=False"):
        step(optimizer, cycle, False)
    tensors = PAIRS[0].ours(model().parameters())
    tensors.param_groups[0]["lr"] = torch.tensor(0.1)
    with refused("lr", "numbers", "`lr`"):
        step(tensors, SkipAware(SCHEDULES["StepLR"](tensors)), False)


def test_a_group_that_is_added_later_follows_the_schedule_too():
    rates = []
    for aware in (True, False):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = sync_free.SGD([weight], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        scaler = GradScaler("cpu", init_scale=4.0)
        stepped = SkipAware(schedule) if aware else schedule
        for step in range(6):
            for group in optimizer.param_groups:
                group["params"][0].grad = scaler.scale(
                    torch.full((3,), torch.inf if step == 3 else 1.0)
                )
            scaler.step(optimizer)
            scaler.update()
            if aware or not scaler.skipped_steps() or step != 3:
                stepped.step()
            if step == 1:
                optimizer.add_param_group(
                    {"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.5}
                )
        if aware:
            stepped.settle()
        rates.append([group["lr"] for group in optimizer.param_groups])
        rates.append([group["params"][0].detach() for group in optimizer.param_groups])
    assert rates[0] == pytest.approx(rates[2])
    torch.testing.assert_close(rates[1], rates[3])
