"""Our sync-free optimizers and GradScaler do what torch's do, and no step waits for the device.

LAMB is compared with timm's. `test_forms.py` has weights and gradients of any kind.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings

import pytest
import torch
from optim.training import (
    ADAM,
    OVERFLOW_AT,
    PAIRS,
    SCALING,
    STEPS,
    NothingWaits,
    losses,
    model,
    warmup,
)
from own_operators import on_cpu_too
from refusal import refused
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.kernels.runtime import operators
from gallery_lib.optim import sync_free
from gallery_lib.optim.grad_scaler import GradScaler, Updates

EACH = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
WITH_ADAM = pytest.mark.parametrize("pair", [*PAIRS, ADAM], ids=lambda pair: pair.name)


@pytest.fixture(params=["torch's check", "one read"])
def read(request, monkeypatch):
    """Check gradients by torch's operator, as on a CPU, or by ours, as where kernels run."""
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    monkeypatch.setenv(KERNELS_VARIABLE, "1")
    with on_cpu_too() if request.param == "one read" else contextlib.nullcontext():
        yield request.param


def updates(kind: str, pair, net, max_norm: float | None = None) -> Updates:
    """Return optimizer, scaler and schedule, all `ours` or all torch's."""
    optimizer = pair.ours(net.parameters()) if kind == "ours" else pair.theirs(net.parameters())
    scaler = (
        GradScaler("cpu", **SCALING) if kind == "ours" else torch.amp.GradScaler("cpu", **SCALING)
    )
    return Updates(optimizer, scaler, LambdaLR(optimizer, warmup), max_norm)


def run(net, chosen: Updates, steps=range(STEPS), overflow_at=OVERFLOW_AT) -> list[float]:
    return losses(net, chosen.optimizer, steps, chosen.scaler, overflow_at, chosen.take)


@pytest.mark.slow
@EACH
def test_200_clipped_steps_with_overflows_have_the_losses_of_torchs_scaler_optimizer_and_schedule(
    pair,
):
    net, other = model(torch.float64), model(torch.float64)
    ours, theirs = updates("ours", pair, net, 0.3), updates("torch's", pair, other, 0.3)
    assert run(net, ours) == pytest.approx(run(other, theirs), rel=1e-5)
    assert ours.skipped_steps() == theirs.skipped_steps() == len(OVERFLOW_AT)
    assert ours.scaler.state_dict() == theirs.scaler.state_dict()
    assert ours.schedule.state_dict() == theirs.schedule.state_dict()
    assert ours.optimizer.param_groups[0]["lr"] == theirs.optimizer.param_groups[0]["lr"]


@EACH
@pytest.mark.parametrize("max_norm", [None, 0.3], ids=["unclipped", "clipped"])
def test_nothing_in_an_update_waits(pair, max_norm, read):
    net = model()
    chosen = updates("ours", pair, net, max_norm)
    scaler = chosen.scaler
    with NothingWaits():
        for step in range(4):
            chosen.optimizer.zero_grad()
            scaler.scale(net(torch.ones(2, 12)).square().mean()).backward()
            if step == 2:
                net[3].bias.grad.fill_(torch.nan)
            chosen.take()
    assert scaler.skipped_steps() == 1


def test_where_kernels_run_gradients_are_checked_by_one_read(read):
    before = operators.counts()
    net = model()
    run(net, updates("ours", PAIRS[0], net), range(5), ())
    name = ("gradient_statistics", operators.PLAIN_TORCH)
    assert operators.counts()[name] - before[name] == (5 if read == "one read" else 0)


def test_torchs_scaler_waits_with_an_optimizer_that_is_none_of_ours():
    """The test above can fail."""
    net = model()
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.RMSprop(net.parameters())
    scaler.scale(net(torch.ones(2, 12)).mean()).backward()
    with NothingWaits(), pytest.raises(AssertionError, match="waits for the device"):
        scaler.step(optimizer)


def test_torchs_fused_optimizer_does_not_wait_either():
    net = model()
    optimizer, scaler = torch.optim.AdamW(net.parameters(), fused=True), GradScaler("cpu")
    with NothingWaits():
        scaler.scale(net(torch.ones(2, 12)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.skipped_steps() == 0


def test_an_optimizer_that_knows_nothing_of_scaling_works():
    pair = PAIRS[-1]
    net, other = model(torch.float64), model(torch.float64)
    optimizer = pair.theirs(net.parameters())
    ours = Updates(optimizer, GradScaler("cpu", **SCALING), LambdaLR(optimizer, warmup), 0.3)
    assert run(net, ours, range(60)) == pytest.approx(
        run(other, updates("torch's", pair, other, 0.3), range(60)), rel=1e-9
    )
    assert ours.skipped_steps() == sum(step < 60 for step in OVERFLOW_AT)


@pytest.mark.parametrize(
    "pair", [pair for pair in (*PAIRS, ADAM) if pair.name != "LAMB"], ids=lambda pair: pair.name
)
@pytest.mark.parametrize("direction", ["from torch", "to torch"])
def test_a_checkpoint_with_scaler_and_schedule_is_continued_with_the_same_losses(
    pair, direction, tmp_path
):
    first, second = ("torch's", "ours") if direction == "from torch" else ("ours", "torch's")
    net = model(torch.float64)
    chosen = updates(first, pair, net)
    run(net, chosen, range(4))  # the last step was skipped

    def parts(net, of):
        return {"net": net, "optimizer": of.optimizer, "scaler": of.scaler, "schedule": of.schedule}

    state = {name: part.state_dict() for name, part in parts(net, chosen).items()}
    torch.save(state, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = model(torch.float64)
    continued = updates(second, pair, other)
    for name, part in parts(other, continued).items():
        part.load_state_dict(saved[name])
    assert run(other, continued, range(4, 24)) == pytest.approx(
        run(net, chosen, range(4, 24)), rel=1e-5
    )
    assert continued.scaler.state_dict() == chosen.scaler.state_dict()


def test_two_optimizers_are_skipped_one_by_one():
    nets = [model(), model()]
    optimizers = [PAIRS[k].ours(net.parameters()) for k, net in enumerate(nets)]
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    scaler = GradScaler("cpu", init_scale=8.0)
    scaler.scale(sum(net(torch.ones(2, 12)).square().mean() for net in nets)).backward()
    nets[0][3].bias.grad.fill_(torch.inf)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert torch.equal(nets[0][0].weight, before[0]["0.weight"]) and not torch.equal(
        nets[1][0].weight, before[1]["0.weight"]
    )
    assert (scaler.get_scale(), scaler.skipped_steps()) == (4.0, 1)


def test_disabled_it_passes_everything_through():
    net = model()
    optimizer, scaler = PAIRS[0].ours(net.parameters()), GradScaler("cpu", enabled=False)
    loss = net(torch.ones(2, 12)).square().mean()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.step(optimizer), scaler.update()
    assert (scaler.state_dict(), scaler.skipped_steps()) == ({}, 0)


def test_it_is_a_grad_scaler_of_torchs_and_survives_pickling():
    net = model()
    scaler = GradScaler("cpu", **SCALING)
    assert isinstance(scaler, torch.amp.GradScaler)
    losses(net, PAIRS[0].ours(net.parameters()), range(2), scaler, (1,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = pickle.loads(pickle.dumps(scaler))
    assert other.state_dict() == scaler.state_dict()


@WITH_ADAM
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


@WITH_ADAM
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
