"""One-pass optimizers do what torch's classes do, for all gradients, weights and options.

The oracle is torch.optim's class with foreach=False. The outcome is compared: values, states, step
counts, or the type of the error.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gallery_lib.errors import InputError
from gallery_lib.kernels import cpu_optimizers
from gallery_lib.optim import fused_cpu

NAMES = ("Adam", "AdamW", "SGD", "RMSprop", "RAdam")
every_class = pytest.mark.parametrize("name", NAMES)
MOMENTUM: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}}


def pair(name: str) -> tuple[type[torch.optim.Optimizer], type[torch.optim.Optimizer]]:
    return getattr(fused_cpu, name), getattr(torch.optim, name)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


FP32 = (torch.float32,)


def assert_same(
    ours: Any, theirs: Any, what: str = "", rounded: tuple[torch.dtype, ...] = FP32
) -> None:
    """Assert that two results are the same.

    Values of the dtypes `rounded` may differ in fp32's rounding. What torch's class computes may
    not differ.
    """
    if isinstance(theirs, Tensor):
        assert (
            isinstance(ours, Tensor) and ours.dtype is theirs.dtype and ours.layout is theirs.layout
        ), what
        bounds = {"rtol": 0.0, "atol": 0.0}
        if theirs.layout is torch.strided:
            assert ours.shape == theirs.shape, what
        if theirs.dtype in rounded:
            values = theirs.detach().coalesce().values() if theirs.is_sparse else theirs.detach()
            finite = values[values.isfinite()].abs()
            # The largest of the terms that were added up.
            largest = float(finite.max()) if finite.numel() else 0.0
            bounds = {"rtol": 2e-6, "atol": 2e-7 * (1.0 + largest)}
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, **bounds, msg=lambda m: f"{what}: {m}"
        )
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), what
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{what}.{key}", rounded)
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs) and len(ours) == len(theirs), what
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{what}[{place}]", rounded)
    else:
        assert ours == theirs, what


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error)


Scenario = Callable[[type[torch.optim.Optimizer], dict[str, Any]], Any]


def compare(
    name: str, scenario: Scenario, rounded: tuple[torch.dtype, ...] = FP32, **options: Any
) -> Any:
    ours, theirs = (
        outcome(lambda kind=kind: scenario(kind, copy.deepcopy(options))) for kind in pair(name)
    )
    assert_same(ours, theirs, name, rounded)
    return theirs


def turned(tensor: Tensor) -> Tensor:
    return tensor.permute(tuple(range(tensor.dim()))[::-1])


WEIGHTS: dict[str, Callable[[int], Tensor]] = {
    "fp32": lambda seed: random(5, 7, seed=seed),
    "channels_last": lambda seed: random(2, 3, 4, 5, seed=seed).to(
        memory_format=torch.channels_last
    ),
    "transposed": lambda seed: random(6, 4, seed=seed).t(),
    "with gaps": lambda seed: random(5, 8, seed=seed)[:, ::2],
    "no elements": lambda seed: random(0, 3, seed=seed),
    "scalar": lambda seed: random(seed=seed),
    "fp64": lambda seed: random(5, 7, seed=seed, dtype=torch.float64),
    "bf16": lambda seed: random(5, 7, seed=seed, dtype=torch.bfloat16),
    "fp16": lambda seed: random(5, 7, seed=seed, dtype=torch.float16),
    "complex": lambda seed: random(5, 7, seed=seed, dtype=torch.complex64),
    "a part": lambda seed: random(9, 7, seed=seed)[2:6],
    "infinite": lambda seed: random(5, 7, seed=seed).index_fill_(0, torch.tensor(1), torch.inf),
}
GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor | None]] = {
    "alike": lambda w, g: torch.empty_like(w).copy_(g),
    "contiguous": lambda w, g: g.contiguous(),
    "expanded": lambda w, g: (
        g.flatten()[:1].reshape([1] * w.dim()).expand(w.shape) if w.numel() else g
    ),
    "reversed strides": lambda w, g: turned(turned(g).contiguous()),
    "infinite": lambda w, g: torch.full_like(w, torch.inf),
    "NaN": lambda w, g: torch.full_like(w, torch.nan),
    "zero": lambda w, g: torch.zeros_like(w),
    "negative bit": lambda w, g: g if w.is_complex() else torch._neg_view(g.clone()),
    "sparse": lambda w, g: g.to_sparse() if w.dim() else g,
    "the weight": lambda w, g: w.detach(),
    "none": lambda w, g: None,
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adam": [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.1},
        {"betas": (0.0, 0.5)},
        {"betas": (0.3, 0.0), "maximize": True},
    ],
    "AdamW": [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.0},
        {"lr": torch.tensor(0.01)},
        {"eps": 0.0},
    ],
    "SGD": [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
    "RMSprop": [
        {},
        {"momentum": 0.9},
        {"centered": True},
        {"weight_decay": 0.1, "maximize": True},
        {"alpha": 0.3},
    ],
    "RAdam": [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"betas": (0.2, 0.6)},
    ],
}


@st.composite
def trainings(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[list[str]], bool]:
    """Draw (class, groups of kinds of weights, kinds of gradients, whether by a closure).

    The kinds of gradients are given for each step.
    """
    name = draw(st.sampled_from(NAMES))
    options = st.sampled_from(OPTIONS[name])
    kinds = st.lists(st.sampled_from(list(WEIGHTS)), min_size=1, max_size=3)
    groups = [{"weights": draw(kinds), **draw(options)} for _ in range(draw(st.integers(1, 2)))]
    count = sum(len(group["weights"]) for group in groups)
    step = st.lists(st.sampled_from(list(GRADIENTS)), min_size=count, max_size=count)
    return name, groups, draw(st.lists(step, min_size=1, max_size=4)), draw(st.booleans())


def trained(
    kind: type[torch.optim.Optimizer],
    groups: list[dict[str, Any]],
    steps: list[list[str]],
    by_closure: bool,
) -> Any:
    """Return weights and state dict after these steps.

    At the place of a step that raised is the type of its error.
    """
    seeds = iter(range(100))
    weights: list[nn.Parameter] = []
    made = []
    for group in groups:
        own = [nn.Parameter(WEIGHTS[each](next(seeds))) for each in group["weights"]]
        weights += own
        made.append({**group, "params": own, "weights": 0})
    optimizer = kind(made, lr=0.01, foreach=False)
    calls = 0
    said = []
    for number, step in enumerate(steps):

        def closure(number: int = number, step: list[str] = step) -> float:
            nonlocal calls
            calls += 1
            assert torch.is_grad_enabled() or not by_closure
            for place, (weight, gradient) in enumerate(zip(weights, step, strict=True)):
                drawn = random(*weight.shape, seed=1000 * number + place, dtype=weight.dtype)
                weight.grad = GRADIENTS[gradient](weight.detach(), drawn)
            return 3.0 + number

        if by_closure:
            said.append(outcome(lambda closure=closure: optimizer.step(closure)))
        else:
            closure()
            said.append(outcome(optimizer.step))
    assert calls == len(steps)
    return [weight.detach() for weight in weights], optimizer.state_dict(), said


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(trainings())
def test_drawn_trainings(case: tuple[str, list[dict[str, Any]], list[list[str]], bool]) -> None:
    name, groups, steps, by_closure = case
    ours, theirs = (trained(kind, copy.deepcopy(groups), steps, by_closure) for kind in pair(name))
    assert_same(ours, theirs, name)


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
    with pytest.raises(
        InputError, match=r"weights, torch.float32 \(1000,\) .* less memory than its shape asks for"
    ):
        optimizer.step()
    weight.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="it has no memory"):
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
