"""One-pass optimizers do what torch's classes do with odd weights, groups, options and states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.torch_cases import WEIGHTS
from optim.torch_oracle import FP32, MOMENTUM, compare, every_class, random
from torch import Tensor, nn

from gallery_lib.kernels import cpu_optimizers


@every_class
@pytest.mark.parametrize("kind", ["fp64", "bf16", "fp16", "complex"])
def test_a_first_step_by_a_closure_in_another_dtype(name: str, kind: str) -> None:
    """Before the closure there is no gradient, so nothing that could be looked at."""

    def scenario(kind_of: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weight = nn.Parameter(WEIGHTS[kind](1))
        optimizer = kind_of([weight], lr=0.01, foreach=False, **options)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (weight * weight.conj()).real.sum()
            loss.backward()
            return loss.detach()

        return [optimizer.step(closure) for _ in range(3)], weight.detach(), optimizer.state_dict()

    assert isinstance(compare(name, scenario, **MOMENTUM.get(name, {})), tuple)


def test_a_sparse_embedding_by_a_closure() -> None:
    for momentum in (0.0, 0.9):

        def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
            torch.manual_seed(0)
            embedding, linear = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)
            optimizer = kind(
                [*embedding.parameters(), *linear.parameters()], lr=0.1, foreach=False, **options
            )

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = linear(embedding(torch.tensor([1, 3, 3]))).square().sum()
                loss.backward()
                return loss.detach()

            return (
                [optimizer.step(closure) for _ in range(3)],
                embedding.weight.detach(),
                linear.weight.detach(),
            )

        assert isinstance(compare("SGD", scenario, momentum=momentum), tuple)


@every_class
def test_weights_that_share_memory(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        storage = random(40)
        weights = [
            nn.Parameter(storage[:20]),
            nn.Parameter(storage[10:30]),
            nn.Parameter(storage[30:]),
        ]
        optimizer = kind(weights, lr=0.1, foreach=False, **options)
        for step in range(4):
            for place, weight in enumerate(weights):
                weight.grad = random(*weight.shape, seed=10 * step + place)
            optimizer.step()
        return storage, optimizer.state_dict()

    compare(name, scenario, **MOMENTUM.get(name, {}))


@every_class
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_weight_that_is_listed_twice(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weight = nn.Parameter(random(20))
        optimizer = kind([weight, weight], lr=0.1, foreach=False, **options)
        for step in range(3):
            weight.grad = random(20, seed=step)
            optimizer.step()
        return weight.detach(), optimizer.state[weight]

    compare(name, scenario, **MOMENTUM.get(name, {}))


@every_class
def test_groups_that_differ_each_take_their_own_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fp32 group is stepped by the C++ although the other one cannot be; one is added later."""
    taken: list[int] = []
    real = cpu_optimizers._step
    monkeypatch.setattr(
        cpu_optimizers,
        "_step",
        lambda kind, columns, *rest: (taken.append(len(columns[0])), real(kind, columns, *rest)),
    )

    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        groups = [
            {"params": [nn.Parameter(random(9, seed=1))], "lr": 0.3},
            {"params": [nn.Parameter(random(9, seed=2, dtype=torch.float64))], "weight_decay": 0.2},
        ]
        optimizer = kind(groups, lr=0.1, foreach=False, **options)
        for step in range(4):
            if step == 2:
                optimizer.add_param_group(
                    {
                        "params": [
                            nn.Parameter(random(4, seed=3)),
                            nn.Parameter(random(4, seed=4)),
                        ],
                        "lr": 0.2,
                    }
                )
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weight.grad = random(*weight.shape, seed=step, dtype=weight.dtype)
            optimizer.step()
        return [
            p.detach() for group in optimizer.param_groups for p in group["params"]
        ], optimizer.state_dict()

    compare(name, scenario, **MOMENTUM.get(name, {}))
    assert taken == [1, 1, 1, 2, 1, 2]


@every_class
def test_tensors_as_options(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weight = nn.Parameter(random(20))
        optimizer = kind([weight], foreach=False, **options)
        for step in range(3):
            weight.grad = random(20, seed=step)
            optimizer.step()
        return weight.detach(), optimizer.state[weight]

    compare(name, scenario, lr=torch.tensor(0.01))
    compare(name, scenario, lr=torch.tensor([0.01], dtype=torch.float64))
    if name in ("Adam", "AdamW"):
        compare(name, scenario, betas=(torch.tensor(0.8), torch.tensor(0.9)))
    if name == "SGD":
        compare(name, scenario, weight_decay=torch.tensor(0.1))


def changed_states(name: str) -> dict[str, Callable[[dict[str, Any]], Any]]:
    first = {"SGD": "momentum_buffer", "RMSprop": "square_avg"}.get(name, "exp_avg")
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "in fp64": lambda s: s.__setitem__(first, s[first].double()),
        "in bf16": lambda s: s.__setitem__(first, s[first].bfloat16()),
        "with gaps": lambda s: s.__setitem__(first, torch.stack([s[first], s[first]], -1)[..., 0]),
        "in another layout": lambda s: s.__setitem__(first, s[first].t().contiguous().t()),
        "missing": lambda s: s.pop(first),
        "of another shape": lambda s: s.__setitem__(first, torch.zeros(3)),
        "emptied": lambda s: s.clear(),
    }
    if name != "SGD":
        changes |= {
            "step as an int": lambda s: s.__setitem__("step", 2),
            "step in int64": lambda s: s.__setitem__("step", torch.tensor(2)),
            "step in fp64": lambda s: s.__setitem__("step", torch.tensor(2.0, dtype=torch.float64)),
            "step with a dimension": lambda s: s.__setitem__("step", torch.tensor([2.0])),
            "a step before the first": lambda s: s.__setitem__("step", torch.tensor(-1.0)),
            "without a step": lambda s: s.pop("step"),
        }
    return changes


@every_class
def test_states_of_another_kind(name: str) -> None:
    for what, change in changed_states(name).items():

        def scenario(
            kind: type[torch.optim.Optimizer], options: dict[str, Any], change: Any = change
        ) -> Any:
            weight = nn.Parameter(random(5, 4))
            optimizer = kind([weight], lr=0.01, foreach=False, **options)
            for step in range(4):
                weight.grad = random(5, 4, seed=step)
                optimizer.step()
                if step == 1:
                    change(optimizer.state[weight])
            return weight.detach(), optimizer.state[weight]

        # Two steps in fp32 came before.
        rounded = (*FP32, torch.float64) if what == "in fp64" else FP32
        compare(name, scenario, rounded, **MOMENTUM.get(name, {}))


@every_class
def test_one_step_count_for_two_weights(name: str) -> None:
    if name == "SGD":
        return

    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weights = [nn.Parameter(random(5)), nn.Parameter(random(5, seed=1))]
        optimizer = kind(weights, lr=0.01, foreach=False, **options)
        for step in range(4):
            for weight in weights:
                weight.grad = random(5, seed=step)
            optimizer.step()
            optimizer.state[weights[1]]["step"] = optimizer.state[weights[0]]["step"]
        return [weight.detach() for weight in weights], optimizer.state_dict()

    compare(name, scenario)


@every_class
def test_a_default_dtype_of_float64(name: str) -> None:
    def scenario(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Any:
        weight = nn.Parameter(random(5))
        optimizer = kind([weight], lr=0.01, foreach=False, **options)
        weight.grad = random(5, seed=1)
        optimizer.step()
        return weight.detach(), optimizer.state_dict()

    torch.set_default_dtype(torch.float64)
    try:
        compare(name, scenario, **MOMENTUM.get(name, {}))
    finally:
        torch.set_default_dtype(torch.float32)
