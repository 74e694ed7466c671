"""Optimizers in one pass over memory: torch's values, states and options."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from optim.training import batch
from torch import Tensor, nn

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.optim import OptimizerSpec, fused_cpu, kind

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Adam", {"lr": 1e-3}),
    (
        "Adam",
        {"lr": 3e-3, "weight_decay": 1e-2, "betas": (0.8, 0.9), "eps": 1e-4, "maximize": True},
    ),
    ("AdamW", {"lr": 1e-3}),
    ("AdamW", {"lr": 3e-3, "weight_decay": 1e-1, "fused": True}),
    ("SGD", {"lr": 1e-2}),
    ("SGD", {"lr": 1e-2, "weight_decay": 1e-2, "maximize": True}),
    ("SGD", {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "fused": True}),
    ("SGD", {"lr": 1e-2, "momentum": 0.5, "weight_decay": 1e-2}),
    ("RMSprop", {"lr": 1e-3}),
    ("RMSprop", {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-2, "alpha": 0.9}),
    ("RMSprop", {"lr": 1e-3, "momentum": 0.5, "maximize": True, "eps": 1e-3}),
    ("RAdam", {"lr": 3e-3}),
    ("RAdam", {"lr": 3e-3, "weight_decay": 1e-2, "betas": (0.8, 0.9)}),
    ("RAdam", {"lr": 3e-3, "weight_decay": 1e-1, "decoupled_weight_decay": True, "maximize": True}),
)
every_option = pytest.mark.parametrize(("name", "arguments"), OPTIONS, ids=str)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the names of our steps that were taken; they are taken for real."""
    taken: list[str] = []
    real = cpu_optimizers._step
    monkeypatch.setattr(
        cpu_optimizers, "_step", lambda name, *rest: (taken.append(name), real(name, *rest))
    )
    return taken


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return a model with weights of special forms.

    One is in channels_last, one has a single element, and one never has a gradient.
    """
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)),
        nn.Conv2d(3, 8, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.PReLU(),
        nn.Linear(72, 4),
    )
    layers.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return layers.to(dtype).to(memory_format=torch.channels_last)


def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    dtype = next(network.parameters()).dtype
    for step in steps:
        optimizer.zero_grad()
        inputs, labels = batch(step, dtype)
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()


def assert_alike(ours: nn.Module, theirs: nn.Module) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@every_option
def test_it_trains_as_torchs(name: str, arguments: dict[str, Any], ran: list[str]) -> None:
    ours, theirs = model(), model()
    optimizers = [
        getattr(module, name)(network.parameters(), **arguments)
        for module, network in ((fused_cpu, ours), (torch.optim, theirs))
    ]
    for network, optimizer in zip((ours, theirs), optimizers, strict=True):
        train(network, optimizer, range(40))
    assert ran == ["adam" if name == "AdamW" else name.lower()] * 40
    assert_alike(ours, theirs)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        mine, torchs = (
            optimizer.state[p] for optimizer, p in zip(optimizers, (one, other), strict=True)
        )
        assert mine.keys() == torchs.keys()
        for key in mine:
            torch.testing.assert_close(mine[key], torchs[key], rtol=1e-4, atol=1e-7)


@every_option
def test_a_checkpoint_of_either_is_continued_by_the_other(
    name: str, arguments: dict[str, Any]
) -> None:
    kinds = getattr(fused_cpu, name), getattr(torch.optim, name)
    for first, then in (kinds, kinds[::-1]):
        straight, network = model(), model()
        train(straight, kinds[1](straight.parameters(), **arguments), range(20))
        begun = first(network.parameters(), **arguments)
        train(network, begun, range(10))
        going_on = then(network.parameters(), **arguments)
        going_on.load_state_dict(copy.deepcopy(begun.state_dict()))
        train(network, going_on, range(10, 20))
        assert_alike(network, straight)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RMSprop", {"lr": 1e-3, "momentum": 0.9}),
        ("RAdam", {}),
        ("AdamW", {}),
        ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    ],
)
def test_threads_change_no_bit(name: str, arguments: dict[str, Any]) -> None:
    found: list[list[Tensor]] = []
    before = torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(size)) for size in (3, 100_003, 1, 70_000, 0, 17)]
        optimizer = getattr(fused_cpu, name)(weights, **arguments)
        torch.set_num_threads(threads)
        try:
            for _ in range(8):
                for weight in weights:
                    weight.grad = torch.randn(weight.shape)
                optimizer.step()
        finally:
            torch.set_num_threads(before)
        found.append([weight.detach() for weight in weights])
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.parametrize(
    ("name", "arguments", "states"),
    [
        ("RMSprop", {"momentum": 0.9}, ("square_avg", "momentum_buffer")),
        ("AdamW", {}, ("exp_avg", "exp_avg_sq")),
        ("SGD", {"momentum": 0.9}, ("momentum_buffer",)),
    ],
)
def test_states_and_gradients_in_another_layout(
    name: str, arguments: dict[str, Any], states: tuple[str, ...]
) -> None:
    ours, theirs = (
        nn.Parameter(torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last))
        for _ in range(2)
    )
    optimizers = (
        getattr(fused_cpu, name)([ours], **arguments),
        getattr(torch.optim, name)([theirs], **arguments),
    )
    for step in range(4):
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = (
                torch.linspace(-1, 1, 48)
                .reshape(2, 3, 2, 4)
                .contiguous(memory_format=torch.channels_last)
            )
            # torch.optim takes any layout, too.
            weight.grad = weight.grad.contiguous() if step else weight.grad
            optimizer.step()
            if step == 1:
                for key in states:
                    optimizer.state[weight][key] = optimizer.state[weight][key].contiguous()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        optimizers[0].state[ours], optimizers[1].state[theirs], rtol=1e-5, atol=1e-6
    )


def test_the_rest_is_left_to_torch(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(
        arguments: dict[str, Any], dtype: torch.dtype = torch.float32, name: str = "RMSprop"
    ) -> None:
        ours, theirs = model(dtype), model(dtype)
        train(ours, getattr(fused_cpu, name)(ours.parameters(), **arguments), range(5))
        train(theirs, getattr(torch.optim, name)(theirs.parameters(), **arguments), range(5))
        assert_alike(ours, theirs)

    compare({"centered": True})
    compare({"momentum": 0.9}, torch.float64)
    compare({"lr": torch.tensor(1e-3)})
    compare({"amsgrad": True}, name="AdamW")
    compare({"momentum": 0.9, "dampening": 0.5}, name="SGD")
    monkeypatch.setattr(cpu_optimizers, "available", lambda: False)
    compare({"momentum": 0.9})
    compare({"fused": True}, name="AdamW")
    assert ran == []


def test_what_a_scaler_found_counts(ran: list[str]) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = fused_cpu.AdamW([weight], fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for gradient, left_alone in ((float("inf"), True), (1.0, False)):
        before = weight.detach().clone()
        weight.grad = scaler.scale(torch.full((3,), gradient))
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight, before) is left_alone
    assert ran == []  # torch's fused form, which knows of scale and flag, takes such steps


def test_hooks_are_called_once_whoever_takes_the_step() -> None:
    # torch's class has hooks around its step from here on.
    torch.optim.RMSprop([nn.Parameter(torch.ones(3))])
    for dtype in (torch.float32, torch.float64):
        weight, seen = nn.Parameter(torch.ones(3, dtype=dtype)), []
        optimizer = fused_cpu.RMSprop([weight])
        optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_, seen=seen: seen.append("after"))
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert seen == ["before", "after"]
        assert bool((weight < 1).all())


def test_a_closure_is_called_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = fused_cpu.RAdam([weight])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert bool((weight < 1).all())


def test_the_accelerated_backend_takes_them_on_the_cpu() -> None:
    weights = [nn.Parameter(torch.ones(3))]
    for name in ("Adam", "AdamW", "SGD", "RMSprop", "RAdam"):
        spec = OptimizerSpec(name, lr=1e-3)
        ours = spec.build(iter(weights), lr=None, weight_decay=None, accelerated=True)
        plain = spec.build(iter(weights), lr=None, weight_decay=None, accelerated=False)
        assert isinstance(ours, fused_cpu.OnePass) and kind(ours) == "fused"
        assert type(plain) is getattr(torch.optim, name) and kind(plain) == "torch's own"
