"""Our sync-free optimizers train as torch's do: the same losses, checkpoints and skipped steps.

LAMB is compared with a plain implementation. `test_forms.py` has weights and gradients of any kind.
"""

from __future__ import annotations

import copy

import pytest
import torch
from optim.training import ADAM, OVERFLOW_AT, PAIRS, STEPS, batch, losses, model
from refusal import refused
from torch import nn

from gallery_lib.optim import sync_free
from gallery_lib.optim.updates import clip_factor

EACH = pytest.mark.parametrize("pair", [*PAIRS, ADAM], ids=lambda pair: pair.name)
FROM_TORCH = pytest.mark.parametrize(
    "pair", [pair for pair in (*PAIRS, ADAM) if pair.name != "LAMB"], ids=lambda pair: pair.name
)


@EACH
def test_200_steps_have_the_losses_of_torchs_optimizer(pair):
    """In fp64 nothing but the order of operations differs."""
    net, other = model(torch.float64), model(torch.float64)
    ours = losses(net, pair.ours(net.parameters()))
    theirs = losses(other, pair.theirs(other.parameters()))
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert ours[-1] < 0.6 * ours[0]


@pytest.mark.slow
@EACH
def test_with_injected_overflows_the_same_steps_are_skipped(pair):
    """In fp32, whose rounding 200 steps may add up to a thousandth."""
    net, other = model(), model()
    scaler, other_scaler = (
        torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20) for _ in range(2)
    )
    optimizer, theirs = pair.ours(net.parameters()), pair.theirs(other.parameters())
    ours = losses(net, optimizer, scaler=scaler, overflow_at=OVERFLOW_AT)
    expected = losses(other, theirs, scaler=other_scaler, overflow_at=OVERFLOW_AT)
    assert ours == pytest.approx(expected, rel=1e-3)
    assert scaler.get_scale() == other_scaler.get_scale()
    steps = [state["step"].item() for state in optimizer.state.values() if "step" in state]
    assert all(count == STEPS - len(OVERFLOW_AT) for count in steps)
    assert optimizer.step_was_skipped.item() == 0.0


@FROM_TORCH
@pytest.mark.parametrize("direction", ["from torch", "to torch"])
def test_a_checkpoint_is_continued_with_the_same_losses(pair, direction, tmp_path):
    kinds = (pair.theirs, pair.ours) if direction == "from torch" else (pair.ours, pair.theirs)
    net = model(torch.float64)
    optimizer = kinds[0](net.parameters())
    losses(net, optimizer, range(30))
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "checkpoint.pt")
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = model(torch.float64)
    other.load_state_dict(checkpoint["net"])
    continued = kinds[1](other.parameters())
    continued.load_state_dict(checkpoint["optimizer"])
    expected = losses(net, optimizer, range(30, 60))
    assert losses(other, continued, range(30, 60)) == pytest.approx(expected, rel=1e-9)


@FROM_TORCH
def test_the_state_dict_has_torchs_layout(pair):
    states = []
    for kind in (pair.ours, pair.theirs):
        net = model()
        optimizer = kind(net.parameters())
        losses(net, optimizer, range(2))
        state = optimizer.state_dict()
        forms = {
            index: {name: (value.shape, value.dtype) for name, value in each.items()}
            for index, each in state["state"].items()
        }
        states.append((state["param_groups"], forms))
    assert states[0] == states[1]


def test_a_clip_factor_clips_as_clip_grad_norm_does():
    net, other = model(torch.float64), model(torch.float64)
    ours, theirs = PAIRS[1].ours(net.parameters()), PAIRS[1].theirs(other.parameters())
    for each in (net, other):
        inputs, labels = batch(0, torch.float64)
        nn.functional.cross_entropy(each(inputs), labels).backward()
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters()]))
    ours.clip_factor = clip_factor(norm, 0.1)
    nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    ours.step(), theirs.step()
    torch.testing.assert_close([*net.parameters()], [*other.parameters()], rtol=1e-6, atol=1e-8)


def test_groups_schedulers_closures_and_missing_gradients_work_as_in_torch():
    results = []
    for package in (sync_free, torch.optim):
        net = model(torch.float64)
        unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        groups = [
            {"params": [*net[0].parameters(), unused], "lr": 1e-2},
            {"params": net[3].parameters(), "weight_decay": 0.0},
        ]
        optimizer = package.AdamW(groups, lr=torch.tensor(1e-3, dtype=torch.float64))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

        def closure(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            inputs, labels = batch(0, torch.float64)
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            return loss

        values = []
        for _ in range(10):
            values.append(optimizer.step(closure).item())
            schedule.step()
        assert len(optimizer.state) == 4
        results.append(values)
    assert results[0] == pytest.approx(results[1], rel=1e-7)


def test_a_learning_rate_in_float64_on_the_host_stays_exact():
    values = []
    for package in (sync_free, torch.optim):
        weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = package.SGD([weight], lr=torch.tensor(0.1, dtype=torch.float64))
        weight.grad = torch.full_like(weight, 1 / 3)
        optimizer.step()
        values.append(weight.detach())
    torch.testing.assert_close(*values, rtol=1e-15, atol=0)


def test_a_copy_goes_on_where_the_original_is():
    net = model()
    optimizer = PAIRS[0].ours(net.parameters())
    losses(net, optimizer, range(2))
    both = copy.deepcopy((net, optimizer))
    assert losses(*both, range(2, 5)) == losses(net, optimizer, range(2, 5))
    assert both[1].state_dict()["state"][0]["step"].item() == 5


def test_lamb_refuses_what_no_class_of_torchs_could_take_and_changes_nothing():
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, 2))
    optimizer = sync_free.LAMB([{"params": [first]}, {"params": [second]}], lr=0.1)

    def closure():
        first.grad, second.grad = torch.ones(3), torch.ones(3, 2).to_sparse()
        return 1.0

    with refused("params", "dense"):
        optimizer.step(closure)
    assert bool((first == 1).all()) and not optimizer.state


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
