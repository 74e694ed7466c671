"""`accelerate_optimizer` changes a user's optimizer in place, with unchanged training.

The training stays that of an untouched twin, and learning-rate schedulers go on. What it cannot
make faster is left alone, and it says why.
"""

import copy
import functools
import gc
import pickle
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.optim import adoption, kind
from gallery_lib.optim.adoption import accelerate_optimizer

OPTIONS: dict[str, dict[str, Any]] = {
    "Adam": {"weight_decay": 0.01},
    "AdamW": {},
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.5},
    "RAdam": {},
}
every_class = pytest.mark.parametrize("name", OPTIONS)
SAID = {name: f"{name} takes its steps in one pass over memory on the CPU" for name in OPTIONS}


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(144, 5)).to(memory_format=torch.channels_last)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *after: Any,
    closure: bool = False,
) -> list[float]:
    """Train, and return the losses; `after` are schedulers, stepped after every step."""
    losses = []
    for step in steps:
        inputs = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))

        def loss(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            result = model(inputs).square().mean()
            result.backward()
            return result.detach()

        losses.append(float(optimizer.step(loss) if closure else loss()))
        if not closure:
            optimizer.step()
        for scheduler in after:
            scheduler.step()
    return losses


def make(name: str, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return getattr(torch.optim, name)(
        model.parameters(), **{"lr": 0.01, **OPTIONS[name], **options}
    )


def assert_alike(
    ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, bound: float = 1e-5
) -> None:
    mine, torchs = ours.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == torchs["param_groups"]
    assert mine["state"].keys() == torchs["state"].keys()
    for key, state in torchs["state"].items():
        assert mine["state"][key].keys() == state.keys()
        torch.testing.assert_close(mine["state"][key], state, rtol=10 * bound, atol=bound)
    for one, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        torch.testing.assert_close(one["params"], other["params"], rtol=bound, atol=bound)


@every_class
@pytest.mark.parametrize(
    ("begun", "closure", "own_kernels"), [(0, False, False), (3, True, False), (3, False, True)]
)
def test_it_trains_as_an_untouched_twin(
    name: str, begun: int, closure: bool, own_kernels: bool, request: pytest.FixtureRequest
) -> None:
    """`begun`: steps before it is changed, of which there are states."""
    said, options = SAID[name], {}
    if own_kernels:
        request.getfixturevalue("kernels")
        said = f"{name} is sync-free on cpu"
        options = {"weight_decay": 0.0} if name == "Adam" else {}
    models = network(), network()
    ours, theirs = (make(name, model, **options) for model in models)
    for model, optimizer in zip(models, (ours, theirs), strict=True):
        train(model, optimizer, range(begun))
    before = id(ours), ours.param_groups, ours.state, ours.defaults
    assert accelerate_optimizer(ours) == f"{said}; what it cannot take is left to torch's own step."
    assert (id(ours), ours.param_groups, ours.state, ours.defaults) == before
    assert isinstance(ours, getattr(torch.optim, name))
    assert kind(ours) == ("sync-free" if "sync-free" in said else "fused")
    losses = [
        train(m, o, range(begun, 12), closure=closure)
        for m, o in zip(models, (ours, theirs), strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_alike(ours, theirs)
    assert repr(ours) == repr(theirs)
    assert "is accelerated already" in accelerate_optimizer(ours)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_what_the_sync_free_form_does_not_offer_stays_right(
    kernels: None, name: str, scaled: bool, copied: bool
) -> None:
    """Options that change after the change of class, and gradients of which nobody knew then."""

    def steps(change: bool) -> list[Tensor]:
        torch.manual_seed(0)
        embedding, linear = nn.Embedding(10, 4, sparse=name == "SGD"), nn.Linear(4, 3)
        groups = [{"params": embedding.parameters()}, {"params": linear.parameters()}]
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(groups, lr=0.1)
        if change:
            assert "is sync-free on cpu" in accelerate_optimizer(optimizer)
        if copied:
            embedding, linear, optimizer = copy.deepcopy((embedding, linear, optimizer))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(linear(embedding(torch.tensor([1, 3, 3]))).square().sum()).backward()
            if scaled and step == 2:
                linear.bias.grad[0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            if step == 1:
                optimizer.param_groups[1]["weight_decay"] = 0.1
                optimizer.param_groups[1]["maximize"] = True
                later = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
                optimizer.add_param_group({"params": [later], "lr": 0.5})
            if step >= 1:
                later = optimizer.param_groups[2]["params"][0]
                later.grad = torch.full((3,), 0.5 * scaler.get_scale(), dtype=torch.bfloat16)
        return [embedding.weight, linear.weight, later]

    torch.testing.assert_close(steps(True), steps(False), rtol=1e-5, atol=1e-6)


@every_class
@pytest.mark.parametrize("scheduled", [False, True])
def test_hooks_run_exactly_once(name: str, scheduled: bool) -> None:
    model, seen = network(), []
    optimizer = make(name, model)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: state | {"mine": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append("load"))
    if scheduled:
        lr_scheduler.StepLR(optimizer, 3)
    accelerate_optimizer(optimizer)
    handle = register_optimizer_step_post_hook(lambda *_: seen.append("all after"))
    train(model, optimizer, range(2))
    handle.remove()
    assert seen == ["before", "after", "all after"] * 2
    state = optimizer.state_dict()
    assert state["mine"] == 1
    optimizer.load_state_dict(state)
    assert seen[-1] == "load"


@every_class
def test_copies_and_checkpoints_go_on(name: str) -> None:
    results = []
    for change in (True, False):
        model = network()
        optimizer = make(name, model)
        if change:
            accelerate_optimizer(optimizer)
        train(model, optimizer, range(3))
        copied = copy.deepcopy((model, optimizer))
        pickled = pickle.loads(pickle.dumps((model, optimizer)))
        assert type(copied[1]) is type(optimizer)
        assert type(pickled[1]) is getattr(torch.optim, name)  # which needs no gallery_lib
        assert b"gallery_lib" not in pickle.dumps(optimizer)
        other = network()
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        continued = make(name, other, lr=0.5)
        continued.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if not change:
            accelerate_optimizer(continued)
        pairs = ((model, optimizer), copied, pickled, (other, continued))
        results.append([train(m, o, range(3, 6)) for m, o in pairs])
    for ours, theirs in zip(*results, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert ours == pytest.approx(results[1][0], rel=1e-5)


def test_states_follow_a_model_that_was_moved() -> None:
    weight = nn.Parameter(torch.ones(3, device="meta"))
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight] = {
        "step": torch.tensor(2.0),
        "exp_avg": torch.ones(3),
        "exp_avg_sq": torch.ones(3),
    }
    said = accelerate_optimizer(optimizer)
    assert said == "AdamW stays as it is: its parameters are on meta."
    devices = {name: value.device.type for name, value in optimizer.state[weight].items()}
    assert devices == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}


def test_what_is_told_to_be_fused_is_as_if_it_had_been_made_so() -> None:
    model, twin = network().to(memory_format=torch.contiguous_format), network()
    ours, theirs = make("AdamW", model), make("AdamW", twin, foreach=False)
    assert train(model, ours, range(3)) == pytest.approx(train(twin, theirs, range(3)), 1e-5)
    adoption._fuse(ours)  # as on CUDA
    assert kind(ours) == "fused" and ours._step_supports_amp_scaling
    assert train(model, ours, range(3, 6)) == pytest.approx(train(twin, theirs, range(3, 6)), 1e-5)


@every_class
def test_without_a_compiler_nothing_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_optimizers, "available", lambda: False)
    assert "there is no C++ compiler" in unchanged(make(name, network()))


@pytest.mark.parametrize("order", ["scheduler first", "accelerated first"])
def test_a_scheduler_leads_to_the_new_step_with_the_same_rates(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = mock.Mock(wraps=cpu_optimizers._step)
    monkeypatch.setattr(cpu_optimizers, "_step", taken)
    results = []
    for change in (True, False):
        model, rates = network(), []
        optimizer = make("AdamW", model)
        if change and order == "accelerated first":
            accelerate_optimizer(optimizer)
        scheduler = lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=12)
        if change:
            accelerate_optimizer(optimizer)
        for step in range(10):
            train(model, optimizer, range(step, step + 1), scheduler)
            rates.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]))
        results.append((rates, [p.detach() for p in model.parameters()]))
    assert [call.args[0] for call in taken.call_args_list] == ["adam"] * 10
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)


def test_the_warning_of_a_scheduler_that_is_stepped_first_is_given_as_before() -> None:
    for stepped in (False, True):
        optimizer = make("AdamW", network())
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        accelerate_optimizer(optimizer)
        if stepped:
            optimizer.step()
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            scheduler.step()
        assert ["before `optimizer.step()`" in str(w.message) for w in given] == [True][stepped:]


def test_the_wrapper_of_a_scheduler_keeps_no_optimizer_alive() -> None:
    optimizer = make("AdamW", network())
    lr_scheduler.StepLR(optimizer, 3)
    accelerate_optimizer(optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def unchanged(optimizer: torch.optim.Optimizer) -> str:
    before = dict(vars(optimizer)), type(optimizer)
    said = accelerate_optimizer(optimizer)
    assert (dict(vars(optimizer)), type(optimizer)) == before
    assert "\n" not in said
    return said


class Adam(torch.optim.Adam):
    """Optimizer with the same name as torch's."""


def parameter(**options: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(2, **options))


NO_FORM = "one pass over memory takes fp32 parameters, and numbers as options"
LEFT: dict[str, tuple[Callable[[], torch.optim.Optimizer], str]] = {
    "class of one's own": (lambda: Adam([parameter()]), "is no class of torch.optim"),
    "NAdam": (lambda: torch.optim.NAdam([parameter()]), "there is no faster form of it here"),
    "LBFGS": (lambda: torch.optim.LBFGS([parameter()]), "there is no faster form of it here"),
    "centered": (lambda: torch.optim.RMSprop([parameter()], centered=True), NO_FORM),
    "tensor": (lambda: torch.optim.RMSprop([parameter()], lr=torch.tensor(0.1)), NO_FORM),
    "amsgrad": (lambda: torch.optim.AdamW([parameter()], amsgrad=True), NO_FORM),
    "float64": (lambda: torch.optim.AdamW([parameter(dtype=torch.float64)]), NO_FORM),
    "meta": (
        lambda: torch.optim.AdamW([parameter(), parameter(device="meta")]),
        "its parameters are on cpu, meta",
    ),
    **{
        f"{option}={value}": (
            lambda given=given: torch.optim.Adam([{"params": [parameter()], **g} for g in given]),
            f"Adam stays as it is: {option}={value} was chosen.",
        )
        for option, value in (
            *(("foreach", True), ("foreach", False), ("fused", True), ("fused", False)),
            *(("differentiable", True), ("capturable", True)),
        )
        for given in [[{}, {option: value}]]
    },
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_made_faster_stays_as_it_is_with_the_reason(name: str) -> None:
    build, words = LEFT[name]
    assert words in unchanged(build())


@pytest.mark.parametrize("scheduled", ["never", "before", "after"])
def test_a_step_that_somebody_has_replaced_is_kept(scheduled: str) -> None:
    optimizer = make("SGD", network())
    if scheduled == "before":
        lr_scheduler.StepLR(optimizer, 3)
    wrapped = functools.wraps(optimizer.step)(lambda self, closure=None: "own")
    optimizer.step = types.MethodType(wrapped, optimizer)  # type: ignore[method-assign]
    if scheduled == "after":
        lr_scheduler.StepLR(optimizer, 3)
    assert unchanged(optimizer) == "SGD stays as it is: its `step` was replaced."
    assert optimizer.step() == "own"
