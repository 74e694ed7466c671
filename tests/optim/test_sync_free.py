"""Our optimizers train as torch's do: the same losses, checkpoints and skipped steps.

LAMB is compared with a plain implementation.
"""

from __future__ import annotations

import copy

import pytest
import torch
from optim.plain_lamb import PlainLamb
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
@pytest.mark.parametrize(
    ("dtype", "relative"),
    [(torch.float64, 1e-9), pytest.param(torch.float32, 1e-3, marks=pytest.mark.slow)],
)
def test_200_steps_have_the_losses_of_torchs_optimizer(pair, dtype, relative):
    """In fp64 nothing but the order of operations differs.

    In fp32 200 steps may add that up to a thousandth.
    """
    net, other = model(dtype), model(dtype)
    ours, theirs = (
        losses(net, pair.ours(net.parameters())),
        losses(other, pair.theirs(other.parameters())),
    )
    assert ours == pytest.approx(theirs, rel=relative)
    assert ours[-1] < 0.6 * ours[0]


@pytest.mark.slow
@EACH
def test_with_injected_overflows_the_same_steps_are_skipped(pair):
    net, other = model(), model()
    scaler, other_scaler = (
        torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20) for _ in range(2)
    )
    optimizer = pair.ours(net.parameters())
    ours = losses(net, optimizer, scaler=scaler, overflow_at=OVERFLOW_AT)
    theirs = losses(
        other, pair.theirs(other.parameters()), scaler=other_scaler, overflow_at=OVERFLOW_AT
    )
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert scaler.get_scale() == other_scaler.get_scale()
    assert optimizer.skipped_steps() == len(OVERFLOW_AT)
    steps = [state["step"].item() for state in optimizer.state.values() if "step" in state]
    assert all(count == STEPS - len(OVERFLOW_AT) for count in steps)
    assert optimizer.step_was_skipped.item() == 0.0


@pytest.mark.slow  # importing timm takes seconds
def test_the_plain_lamb_is_timms():
    from timm.optim import Lamb

    net, other, arguments = model(torch.float64), model(torch.float64), PAIRS[-1].arguments
    theirs = Lamb(other.parameters(), **arguments, max_grad_norm=None, always_adapt=True)
    assert losses(net, PlainLamb(net.parameters(), **arguments)) == pytest.approx(
        losses(other, theirs), rel=1e-9
    )


@FROM_TORCH
@pytest.mark.parametrize("direction", ["from torch", "to torch"])
def test_a_checkpoint_is_continued_with_the_same_losses(pair, direction, tmp_path):
    first, second = (
        (pair.theirs, pair.ours) if direction == "from torch" else (pair.ours, pair.theirs)
    )
    net = model(torch.float64)
    optimizer = first(net.parameters())
    losses(net, optimizer, range(30))
    torch.save(
        {"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt"
    )
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = model(torch.float64)
    other.load_state_dict(checkpoint["net"])
    continued = second(other.parameters())
    continued.load_state_dict(checkpoint["optimizer"])
    assert losses(other, continued, range(30, 60)) == pytest.approx(
        losses(net, optimizer, range(30, 60)), rel=1e-9
    )


@FROM_TORCH
def test_the_state_dict_has_torchs_layout(pair):
    net, other = model(), model()
    optimizers = pair.ours(net.parameters()), pair.theirs(other.parameters())
    for each, optimizer in zip((net, other), optimizers, strict=True):
        losses(each, optimizer, range(2))
    ours, theirs = (optimizer.state_dict() for optimizer in optimizers)
    assert ours["param_groups"] == theirs["param_groups"]
    shapes = [
        {
            index: {name: (value.shape, value.dtype) for name, value in state.items()}
            for index, state in each["state"].items()
        }
        for each in (ours, theirs)
    ]
    assert shapes[0] == shapes[1]


def test_a_clip_factor_clips_as_clip_grad_norm_does():
    net, other = model(torch.float64), model(torch.float64)
    ours, theirs = PAIRS[1].ours(net.parameters()), PAIRS[1].theirs(other.parameters())
    for each in (net, other):
        inputs, labels = batch(0, torch.float64)
        nn.functional.cross_entropy(each(inputs), labels).backward()
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters()]))
    ours.clip_factor = clip_factor(norm * 8, 0.1, torch.tensor(8.0))
    nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    ours.step(), theirs.step()
    torch.testing.assert_close(
        list(net.parameters()), list(other.parameters()), rtol=1e-6, atol=1e-8
    )


def test_learning_rates_on_the_device_replace_the_groups_own():
    net, other = model(torch.float64), model(torch.float64)
    groups, others = (
        [{"params": each[0].parameters()}, {"params": each[3].parameters()}]
        for each in (net, other)
    )
    ours, theirs = sync_free.SGD(groups, lr=1.0), torch.optim.SGD(others, lr=1.0)
    ours.learning_rates = [torch.tensor(0.25), torch.tensor([0.5])]
    theirs.param_groups[0]["lr"], theirs.param_groups[1]["lr"] = 0.25, 0.5
    assert losses(net, ours, range(5)) == pytest.approx(losses(other, theirs, range(5)), rel=1e-9)


def test_groups_schedulers_closures_and_missing_gradients_work_as_in_torch():
    results = []
    for package in (sync_free, torch.optim):
        net = model(torch.float64)
        unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        groups = [
            {"params": [*net[0].parameters(), unused], "lr": 1e-2},
            {"params": net[3].parameters(), "weight_decay": 0.0},
        ]
        optimizer = package.AdamW(groups, lr=torch.tensor(1e-3))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

        def closure(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                net(batch(0, torch.float64)[0]), batch(0, torch.float64)[1]
            )
            loss.backward()
            return loss

        values = []
        for _ in range(10):
            values.append(optimizer.step(closure).item())
            schedule.step()
        assert len(optimizer.state) == 4
        results.append(values)
    assert results[0] == pytest.approx(results[1], rel=1e-7)


def test_a_copy_goes_on_where_the_original_is():
    net = model()
    optimizer = PAIRS[0].ours(net.parameters())
    losses(net, optimizer, range(2))
    both = copy.deepcopy((net, optimizer))
    assert losses(*both, range(2, 5)) == losses(net, optimizer, range(2, 5))
    assert both[1].state_dict()["state"][0]["step"].item() == 5


def test_a_checkpoint_that_asks_for_what_is_not_offered_is_refused():
    parameter = nn.Parameter(torch.ones(2))
    checkpoint = torch.optim.AdamW([parameter], amsgrad=True).state_dict()
    with refused("amsgrad", "AdamW", "amsgrad=True"):
        sync_free.AdamW([parameter]).load_state_dict(checkpoint)


def test_what_is_not_offered_is_refused():
    parameter = nn.Parameter(torch.ones(2))
    with refused("amsgrad", "AdamW", "amsgrad=True"):
        sync_free.AdamW([parameter], amsgrad=True)
    with refused("dampening", "SGD", "dampening=0.1"):
        sync_free.SGD([parameter], lr=0.1, momentum=0.9, dampening=0.1)
    with refused("weight_decay", "Adam ", "weight_decay=0.1"):
        sync_free.Adam([parameter], weight_decay=0.1)
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    with refused("params", "torch.bfloat16"):
        sync_free.AdamW([half]).step()


def test_the_closure_comes_first_and_a_refusal_changes_nothing():
    """Gradients that are not offered are made by the closure, in the second group."""
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, 2))
    calls = []

    def closure(gradient):
        calls.append(torch.is_grad_enabled())
        first.grad, second.grad = torch.ones(3), gradient
        return 1.0

    for kind in (
        sync_free.AdamW,
        sync_free.SGD,
        sync_free.RMSprop,
        sync_free.RAdam,
        sync_free.LAMB,
    ):
        optimizer = kind([{"params": [first]}, {"params": [second]}], lr=0.1)
        with refused("params", "sparse"):
            optimizer.step(lambda: closure(torch.ones(3, 2).to_sparse()))
        assert bool((first == 1).all()) and not optimizer.state
    assert calls == [True] * 5


def test_each_kind_of_gradient_is_stepped_as_by_torch_or_refused():
    made = {
        "expanded": lambda p: torch.ones(1, 1).expand(3, 2),
        "transposed": lambda p: torch.arange(6.0).reshape(2, 3).t(),
        "infinite": lambda p: torch.full((3, 2), torch.inf),
        "negative bit": lambda p: torch._neg_view(torch.ones(3, 2)),
        "no elements": lambda p: torch.ones(3, 2),
    }
    for name, gradient in made.items():
        for kind in ("AdamW", "SGD", "RMSprop", "RAdam"):
            values = []
            for package in (sync_free, torch.optim):
                shape = (0, 2) if name == "no elements" else (3, 2)
                weight = nn.Parameter(torch.arange(6.0).reshape(3, 2)[: shape[0]])
                optimizer = getattr(package, kind)([weight], lr=0.1)
                for _ in range(3):
                    weight.grad = gradient(weight)[: shape[0]]
                    optimizer.step()
                values.append((weight.detach(), optimizer.state_dict()["state"]))
            torch.testing.assert_close(
                *values,
                rtol=2e-6,
                atol=1e-6,
                equal_nan=True,
                msg=lambda text, of=(kind, name): f"{of}: {text}",
            )


def test_what_is_asked_for_later_is_refused_and_not_computed_wrongly():
    weight = nn.Parameter(torch.ones(3))
    optimizer = sync_free.Adam([weight])
    optimizer.param_groups[0]["weight_decay"] = 0.1
    weight.grad = torch.ones(3)
    with refused("weight_decay", "Adam ", "weight_decay=0.1"):
        optimizer.step()
    twice = sync_free.SGD([weight], lr=0.1)
    twice.param_groups[0]["params"] = [weight, weight]
    with refused("params", "twice"):
        twice.step()
    weight.grad = weight.detach()
    with refused("params", "(3,)", "memory"):
        sync_free.AdamW([weight]).step()
    weight.grad = torch.ones(3)
    moved = sync_free.SGD([weight], lr=0.1, momentum=0.9)
    moved.step()
    moved.state[weight]["momentum_buffer"] = moved.state[weight]["momentum_buffer"].double()
    with refused("params", "momentum_buffer", "torch.float64", "torch.float32"):
        moved.step()


def test_a_learning_rate_in_float64_on_the_host_stays_exact():
    values = []
    for package in (sync_free, torch.optim):
        weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = package.SGD([weight], lr=torch.tensor(0.1, dtype=torch.float64))
        weight.grad = torch.full_like(weight, 1 / 3)
        optimizer.step()
        values.append(weight.detach())
    torch.testing.assert_close(*values, rtol=1e-15, atol=0)
