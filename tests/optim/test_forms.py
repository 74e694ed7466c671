"""Every form of an optimizer (one pass, sync-free) does what torch's class does.

Weights, gradients, options and states of every kind; modes, hooks, copies and scalers. What a form
is not written for is left to torch's class. Everything runs on the CPU, where torch has its fused
implementation as well. The oracle is torch.optim's class with foreach=False. The outcome is
compared: values, states, step counts, or the type of the error.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusal import refused
from torch import Tensor, nn

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.optim import fused_cpu, sync_free

NAMES = ("Adam", "AdamW", "SGD", "RMSprop", "RAdam")
MOMENTUM: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}}
FP32 = (torch.float32,)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


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
        {"betas": (torch.tensor(0.8), torch.tensor(0.9))},
    ],
    "AdamW": [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.0},
        {"lr": torch.tensor(0.01)},
        {"lr": torch.tensor([0.01], dtype=torch.float64)},
        {"eps": 0.0},
    ],
    "SGD": [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"weight_decay": torch.tensor(0.1)},
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


def assert_same(
    ours: Any, theirs: Any, what: str = "", rounded: tuple[torch.dtype, ...] = FP32
) -> None:
    """Assert that two results are the same.

    Values of the dtypes `rounded` may differ in fp32's rounding. What torch's class computes may
    not differ.
    """
    if isinstance(theirs, Tensor):
        assert isinstance(ours, Tensor) and ours.dtype is theirs.dtype, what
        assert ours.layout is theirs.layout, what
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
    forms: Any, name: str, scenario: Scenario, rounded: tuple[torch.dtype, ...] = FP32
) -> Any:
    """Hold a scenario with the class `name` of the module `forms` against torch.optim's."""
    ours, theirs = (
        outcome(lambda of=of: scenario(getattr(of, name), copy.deepcopy(MOMENTUM.get(name, {}))))
        for of in (forms, torch.optim)
    )
    assert_same(ours, theirs, name, rounded)
    return theirs


ROUNDED = (torch.float32, torch.float64)
every_class = pytest.mark.parametrize("name", NAMES)
one_pass = functools.partial(compare, fused_cpu)

# --------------------------------------------------------------------------------------------------
# Drawn trainings. What may change between two steps:


def _a_state_is_replaced(optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state.get(optimizer.param_groups[0]["params"][0], {})
    for name, value in state.items():
        if isinstance(value, Tensor) and name != "step":
            state[name] = torch.zeros_like(value)


def _other_memory(optimizer: torch.optim.Optimizer) -> None:
    weight = optimizer.param_groups[0]["params"][0]
    weight.data = weight.data.clone()


def _another_layout(optimizer: torch.optim.Optimizer) -> None:
    weight = optimizer.param_groups[0]["params"][0]
    weight.data = weight.data.t().contiguous().t() if weight.dim() == 2 else weight.data.clone()
    weight.grad = None if weight.grad is None else torch.empty_like(weight).copy_(weight.grad)


def _a_weight_more(optimizer: torch.optim.Optimizer) -> None:
    weight = nn.Parameter(random(3, 3, seed=77))
    weight.grad = torch.ones_like(weight)
    optimizer.add_param_group({"params": [weight]})


CHANGES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "nothing": lambda optimizer: None,
    "a checkpoint": lambda o: o.load_state_dict(copy.deepcopy(o.state_dict())),
    "no state": lambda o: o.state.pop(o.param_groups[0]["params"][0], None),
    "another state": _a_state_is_replaced,
    "rate": lambda optimizer: optimizer.param_groups[0].update(lr=0.02),
    "memory": _other_memory,
    "layout": _another_layout,
    "order": lambda optimizer: optimizer.param_groups[0]["params"].reverse(),
    "a weight more": _a_weight_more,
}


def trained(
    of: Any,
    name: str,
    groups: list[dict[str, Any]],
    steps: list[tuple[str, list[str]]],
    by_closure: bool = False,
) -> Any:
    weights, made, seeds = [], [], iter(range(100))
    for group in copy.deepcopy(groups):
        kinds = group.pop("weights")
        own = [nn.Parameter(WEIGHTS[each](next(seeds))) for each in kinds]
        weights += own
        made.append({**group, "params": own})
    optimizer = getattr(of, name)(made, lr=0.01, foreach=False)
    said = []
    for number, (change, gradients) in enumerate(steps):

        def closure(number: int = number, gradients: list[str] = gradients) -> float:
            for place, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                drawn = random(*weight.shape, seed=1000 * number + place, dtype=weight.dtype)
                weight.grad = GRADIENTS[gradient](weight.detach(), drawn)
            return 3.0 + number

        said.append(outcome(lambda change=change: CHANGES[change](optimizer)))
        if by_closure:
            said.append(outcome(lambda closure=closure: optimizer.step(closure)))
        else:
            closure()
            said.append(outcome(optimizer.step))
    # In which dtype the fused form counts steps is torch's own matter.
    states = [
        {key: float(v) if key == "step" else v for key, v in optimizer.state.get(w, {}).items()}
        for w in weights
    ]
    return [weight.detach() for weight in weights], states, said


def same(of: Any, name: str, *case: Any) -> None:
    ours, theirs = (trained(module, name, *case) for module in (of, torch.optim))
    assert_same(ours, theirs, name, FP32 if of is fused_cpu else ROUNDED)


@st.composite
def trainings(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw (form, class, groups of kinds of weights, steps, whether by a closure)."""
    of = draw(st.sampled_from([fused_cpu, sync_free]))
    name = draw(st.sampled_from([n for n in OPTIONS if hasattr(of, n)]))
    kinds = st.lists(st.sampled_from(list(WEIGHTS)), min_size=1, max_size=3)
    options = st.sampled_from(OPTIONS[name])
    groups = [{"weights": draw(kinds), **draw(options)} for _ in range(draw(st.integers(1, 2)))]
    count = sum(len(group["weights"]) for group in groups)
    # Most gradients are alike, so that most steps are.
    gradient = st.one_of(st.just("alike"), st.just("alike"), st.sampled_from(list(GRADIENTS)))
    step = st.lists(gradient, min_size=count, max_size=count)
    changes = st.one_of(st.just("nothing"), st.sampled_from(list(CHANGES)))
    steps = draw(st.lists(st.tuples(changes, step), min_size=1, max_size=6))
    if of is not fused_cpu:
        # The implementations do not agree on NaN: on the larger of it and a number, for instance.
        usual = {"NaN": "alike", "infinite": "alike"}
        steps = [(change, [usual.get(g, g) for g in gradients]) for change, gradients in steps]
        for group in groups:
            group["weights"] = ["fp32" if k == "infinite" else k for k in group["weights"]]
    return of, name, groups, steps, draw(st.booleans())


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(trainings())
def test_drawn_trainings(case):
    same(*case)


# --------------------------------------------------------------------------------------------------
# One pass over memory.

Kind = type[torch.optim.Optimizer]


def steps_of(optimizer: torch.optim.Optimizer, weights: list[Any], steps: range) -> Any:
    """Return the optimizer after these steps."""
    for step in steps:
        for place, weight in enumerate(weights):
            weight.grad = random(*weight.shape, seed=10 * step + place).to(weight.dtype)
        optimizer.step()
    return optimizer


def stepped(kind: Kind, weights: list[Any], options: dict[str, Any], steps: int = 4) -> Any:
    optimizer = kind(weights, **{"lr": 0.05, "foreach": False, **options})
    return steps_of(optimizer, weights, range(steps))


def shared_memory(kind: Kind, options: dict[str, Any]) -> Any:
    storage = random(40)
    parts = storage[:20], storage[10:30], storage[30:]
    return storage, stepped(kind, [nn.Parameter(p) for p in parts], options).state_dict()


def listed_twice(kind: Kind, options: dict[str, Any]) -> Any:
    weight = nn.Parameter(random(20))
    return weight.detach(), stepped(kind, [weight, weight], options).state[weight]


def default_dtype(kind: Kind, options: dict[str, Any]) -> Any:
    weight = nn.Parameter(random(5))
    torch.set_default_dtype(torch.float64)
    try:
        return weight.detach(), stepped(kind, [weight], options, 1).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)


def scaled(kind: Kind, options: dict[str, Any]) -> Any:
    weight = nn.Parameter(random(5))
    optimizer = kind([weight], lr=0.01, foreach=False, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))  # as a backward pass does, which makes its state
    for step in range(4):
        weight.grad = torch.full((5,), torch.inf) if step == 1 else 8.0 * random(5, seed=step)
        scaler.step(optimizer)
        scaler.update(8.0)
    return weight.detach(), optimizer.state_dict()


SCENARIOS = (shared_memory, listed_twice, default_dtype, scaled)


@every_class
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_one_pass_in(scenario, name):
    assert not isinstance(one_pass(name, scenario), type)  # no error of both


@pytest.fixture
def taken(monkeypatch) -> mock.Mock:
    counted = mock.Mock(wraps=cpu_optimizers._step)
    monkeypatch.setattr(cpu_optimizers, "_step", counted)
    return counted


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


@pytest.mark.parametrize(
    ("name", "what"), [(name, what) for name in NAMES for what in changed_states(name)]
)
def test_states_of_another_kind(name, what):
    def scenario(kind: Kind, options: dict[str, Any]) -> Any:
        weight = nn.Parameter(random(5, 4))
        optimizer = stepped(kind, [weight], options, 2)
        changed_states(name)[what](optimizer.state[weight])
        return weight.detach(), steps_of(optimizer, [weight], range(2, 4)).state[weight]

    # Two steps in fp32 came before.
    one_pass(name, scenario, ROUNDED if what == "in fp64" else FP32)


def test_without_a_compiler_and_under_a_scaler_torchs_fused_class_takes_the_step(
    taken, monkeypatch
):
    compared = one_pass("AdamW", lambda kind, options: scaled(kind, {"fused": True}))
    assert not isinstance(compared, type)
    monkeypatch.setattr(cpu_optimizers, "available", lambda: False)
    one_pass("RMSprop", shared_memory)
    assert not taken.called


def test_a_weight_whose_memory_is_gone_is_refused_before_anything_is_read():
    weight = nn.Parameter(random(1000))
    optimizer = fused_cpu.AdamW([weight])
    weight.grad = random(1000)
    for size, words in ((400, "(1000,)"), (0, "no memory")):
        weight.untyped_storage().resize_(size)
        with refused("weights", words):
            optimizer.step()


@every_class
def test_threads_change_no_bit(name):
    def values(threads: int) -> list[Tensor]:
        weights = [nn.Parameter(random(size)) for size in (3, 100_003, 1, 70_000, 0, 17)]
        torch.set_num_threads(threads)
        stepped(getattr(fused_cpu, name), weights, MOMENTUM.get(name, {}))
        return [weight.detach() for weight in weights]

    before, one = torch.get_num_threads(), values(1)
    several = values(2), values(5)
    torch.set_num_threads(before)
    assert all(map(torch.equal, one * 2, [*several[0], *several[1]]))


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in NAMES for options in OPTIONS[name]], ids=str
)
def test_one_pass_is_as_near_to_float64_as_torchs_and_is_taken(name, options, taken):
    def values(of: Any, dtype: torch.dtype) -> Tensor:
        weight = nn.Parameter(random(500).to(dtype))
        stepped(getattr(of, name), [weight], {"lr": 0.01, **options}, 60)
        return weight.detach().double()

    exact = values(torch.optim, torch.float64)
    ours, theirs = (
        (values(of, torch.float32) - exact).abs().max() for of in (fused_cpu, torch.optim)
    )
    assert ours <= 2 * theirs + 1e-7
    torchs = {"amsgrad", "dampening", "centered"} & options.keys() or "tensor" in str(options)
    rules = [] if torchs else [name.lower().removesuffix("w")] * 60
    assert [call.args[0] for call in taken.call_args_list] == rules
