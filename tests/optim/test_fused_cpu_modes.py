"""One-pass optimizers do what torch's classes do under torch's modes, hooks, copies and scalers."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from optim.torch_cases import OPTIONS
from optim.torch_oracle import MOMENTUM, NAMES, compare, every_class, outcome, pair, random
from refusal import refused
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gallery_lib.optim import fused_cpu


@every_class
def test_steps_in_inference_mode(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weight = nn.Parameter(random(5))
        optimizer = kind([weight], lr=0.01, foreach=False, **options)
        said = []
        for inference in (True, True, False):
            weight.grad = random(5, seed=1)
            with torch.inference_mode(inference):
                said.append(outcome(optimizer.step))
        return said, weight.detach().clone()

    compare(name, scenario, **MOMENTUM.get(name, {}))


@every_class
def test_differentiable_steps(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        start = random(5).requires_grad_()
        weight = start.clone()
        optimizer = kind(
            [nn.Parameter(random(5))], lr=0.01, differentiable=True, foreach=False, **options
        )
        optimizer.param_groups[0]["params"] = [weight]
        weight.grad = random(5, seed=1)
        optimizer.step()
        weight.sum().backward(inputs=[start])
        return weight.detach(), start.grad

    compare(name, scenario)


@every_class
def test_a_compiled_step(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weight = nn.Parameter(random(5))
        optimizer = kind([weight], lr=0.01, foreach=False, **options)
        step = torch.compile(optimizer.step, backend="eager")
        for number in range(3):
            weight.grad = random(5, seed=number)
            step()
        return weight.detach()

    torch._dynamo.reset()
    assert isinstance(compare(name, scenario), Tensor)


@every_class
def test_copies_and_checkpoints_go_on(name: str) -> None:
    ours, theirs = pair(name)

    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weights = [nn.Parameter(random(6)), nn.Parameter(random(3, 2), requires_grad=False)]
        optimizer = kind(weights, lr=0.01, foreach=False, **options)
        other = theirs if kind is ours else ours

        def train(optimizer: torch.optim.Optimizer, steps: range) -> Any:
            for step in steps:
                optimizer.param_groups[0]["params"][0].grad = random(6, seed=step)
                optimizer.step()
            return [p.detach().clone() for p in optimizer.param_groups[0]["params"]], copy.deepcopy(
                optimizer.state_dict()
            )

        results = [train(optimizer, range(2))]
        results.append(train(copy.deepcopy(optimizer), range(2, 4)))
        results.append(train(pickle.loads(pickle.dumps(optimizer)), range(2, 4)))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        continued = other(
            [nn.Parameter(p.detach().clone()) for p in weights], lr=0.5, foreach=False
        )
        continued.load_state_dict(torch.load(file, weights_only=True))
        results.append(train(continued, range(2, 4)))
        return results

    compare(name, scenario, **MOMENTUM.get(name, {}))


@every_class
def test_hooks_run_once_in_every_way_of_taking_the_step(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        weight, seen = nn.Parameter(random(3, dtype=dtype)), []
        optimizer = getattr(fused_cpu, name)([weight])
        handles = [
            optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append("before")),
            optimizer.register_step_post_hook(lambda *_, seen=seen: seen.append("after")),
            register_optimizer_step_pre_hook(lambda *_, seen=seen: seen.append("all before")),
            register_optimizer_step_post_hook(lambda *_, seen=seen: seen.append("all after")),
        ]

        def closure(weight: nn.Parameter = weight, seen: list[str] = seen) -> float:
            seen.append("closure")
            weight.grad = torch.ones_like(weight)
            return 0.0

        optimizer.step(closure)
        for handle in handles:
            handle.remove()
        assert seen == ["all before", "before", "closure", "after", "all after"]


def test_a_scaler_skips_and_unscales_as_with_torchs_class() -> None:
    for name in NAMES:

        def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
            weight = nn.Parameter(random(5))
            optimizer = kind([weight], lr=0.01, foreach=False, **options)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for step in range(4):
                weight.grad = (
                    8.0 * random(5, seed=step) if step != 1 else torch.full((5,), torch.inf)
                )
                scaler.step(optimizer)
                scaler.update(8.0)
            return weight.detach(), optimizer.state_dict()

        compare(name, scenario, **MOMENTUM.get(name, {}))


def test_a_weight_whose_memory_is_gone_is_refused_before_anything_is_read() -> None:
    weight = nn.Parameter(random(1000))
    optimizer = fused_cpu.AdamW([weight])
    weight.grad = random(1000)
    weight.untyped_storage().resize_(400)
    with refused("weights", "(1000,)", "less memory"):
        optimizer.step()
    weight.untyped_storage().resize_(0)
    with refused("weights", "no memory"):
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in NAMES for options in OPTIONS[name]], ids=str
)
def test_it_is_as_near_to_float64_as_torchs_is(name: str, options: dict[str, Any]) -> None:
    def values(kind: type[torch.optim.Optimizer], dtype: torch.dtype) -> Tensor:
        weight = nn.Parameter(random(500).to(dtype))
        optimizer = kind([weight], foreach=False, **{"lr": 0.01, **options})
        for step in range(60):
            weight.grad = random(500, seed=step).to(dtype)
            optimizer.step()
        return weight.detach().double()

    ours, theirs = pair(name)
    exact = values(theirs, torch.float64)
    off = [(values(kind, torch.float32) - exact).abs().max().item() for kind in (ours, theirs)]
    assert off[0] <= 2 * off[1] + 1e-7
