"""`accelerate_optimizer` changes a user's optimizer in place, with unchanged training.

The training stays that of an untouched twin.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.adoption import OPTIONS, SAID, assert_alike, every_class, make, network, train
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from gallery_lib.optim import adoption, fused, kind, sync_free
from gallery_lib.optim.adoption import accelerate_optimizer


@every_class
@pytest.mark.parametrize("begun", [0, 3])
@pytest.mark.parametrize("closure", [False, True])
def test_it_trains_as_an_untouched_twin(name: str, begun: int, closure: bool) -> None:
    """`begun`: steps before it is changed, of which there are states."""
    models = network(), network()
    ours, theirs = (make(name, model) for model in models)
    for model, optimizer in zip(models, (ours, theirs), strict=True):
        train(model, optimizer, range(begun))
    before = id(ours), ours.param_groups, ours.state, ours.defaults
    assert (
        accelerate_optimizer(ours)
        == f"{SAID[name]}; what it cannot take is left to torch's own step."
    )
    assert (id(ours), ours.param_groups, ours.state, ours.defaults) == before
    assert isinstance(ours, getattr(torch.optim, name)) and kind(ours) == "fused"
    losses = [
        train(m, o, range(begun, 12), closure=closure)
        for m, o in zip(models, (ours, theirs), strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_alike(ours, theirs)
    assert repr(ours) == repr(theirs)
    assert "is accelerated already" in accelerate_optimizer(ours)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop", "RAdam"])
def test_where_own_kernels_run_it_is_sync_free(name: str, kernels: None) -> None:
    models = network(), network()
    options = {"weight_decay": 0.0} if name == "Adam" else {}
    ours, theirs = (make(name, model, **options) for model in models)
    for model, optimizer in zip(models, (ours, theirs), strict=True):
        train(model, optimizer, range(3))
    assert (
        accelerate_optimizer(ours)
        == f"{name} is sync-free on cpu; what it cannot take is left to torch's own step."
    )
    assert type(ours) is getattr(sync_free, name) and kind(ours) == "sync-free"
    losses = [train(m, o, range(3, 10)) for m, o in zip(models, (ours, theirs), strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_alike(ours, theirs)


def test_what_the_sync_free_form_does_not_offer_stays_right(kernels: None) -> None:
    """Options that change after the change of class, and gradients of which nobody knew then."""

    def steps(change: bool, name: str, scaled: bool, copied: bool) -> tuple[Any, ...]:
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
        return (
            embedding.weight.detach(),
            linear.weight.detach(),
            optimizer.param_groups[2]["params"][0].detach(),
        )

    for name in ("SGD", "Adam"):
        for scaled in (False, True):
            for copied in (False, True):
                ours, theirs = (steps(change, name, scaled, copied) for change in (True, False))
                torch.testing.assert_close(
                    ours, theirs, rtol=1e-5, atol=1e-6, msg=f"{name} {scaled} {copied}"
                )


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


KINDS: dict[str, Callable[[], list[nn.Parameter]]] = {
    "fp32": lambda: [nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))],
    "fp32 and complex": lambda: [
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(3, dtype=torch.complex64)),
    ],
    "fp32 and bf16": lambda: [
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
    ],
    "fp32 and fp64": lambda: [
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(3, dtype=torch.float64)),
    ],
    "with gaps": lambda: [nn.Parameter(torch.ones(3, 8)[:, ::2])],
    "channels_last": lambda: [
        nn.Parameter(torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last))
    ],
}


@every_class
@pytest.mark.parametrize("parameters", KINDS)
@pytest.mark.parametrize("gradient", ["dense", "sparse", "contiguous", "expanded"])
def test_parameters_and_gradients_of_other_kinds_stay_right(
    name: str, parameters: str, gradient: str
) -> None:
    """Also errors are torch's: of sparse gradients under Adam, for instance."""
    results = []
    for change in (True, False):
        own = KINDS[parameters]()
        optimizer = getattr(torch.optim, name)(own, lr=0.05, **OPTIONS[name])
        if change:
            accelerate_optimizer(optimizer)
        said = []
        for step in range(3):
            for p in own:
                drawn = (
                    torch.linspace(-1, 1 + step, p.numel(), dtype=torch.float64)
                    .reshape(p.shape)
                    .to(p.dtype)
                )
                made = {
                    "dense": torch.empty_like(p).copy_(drawn),
                    "contiguous": drawn,
                    "expanded": drawn.flatten()[-1:].reshape([1] * p.dim()).expand(p.shape),
                }
                p.grad = (
                    drawn.to_sparse()
                    if gradient == "sparse" and step
                    else made.get(gradient, drawn).detach()
                )
            try:
                optimizer.step()
            except Exception as error:
                said.append((type(error), str(error)))
        results.append((said, [p.detach() for p in own], optimizer.state_dict()["state"]))
    ours, theirs = results
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1:], theirs[1:], rtol=1e-5, atol=1e-6)


@every_class
def test_a_scaler_skips_the_same_steps(name: str) -> None:
    results = []
    for change in (True, False):
        weight = nn.Parameter(torch.linspace(-1, 1, 6))
        optimizer = getattr(torch.optim, name)([weight], lr=0.05, **OPTIONS[name])
        if change:
            accelerate_optimizer(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(5):
            weight.grad = scaler.scale(
                torch.full((6,), torch.inf if step in (0, 2) else 1.0 + step)
            )
            if step == 3:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        results.append((weight.detach(), optimizer.state_dict()["state"], scaler.get_scale()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


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


def test_fused_sgd_begins_with_momentum_although_the_first_step_is_skipped() -> None:
    """torch's fused form would keep memory that nobody has written."""
    results = []
    for change in (True, False):
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        if change:
            optimizer.__class__ = fused.SGD
            optimizer._patch_step_function()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for gradient in (torch.inf, 1.0, 2.0):
            weight.grad = scaler.scale(torch.full((4,), gradient))
            scaler.step(optimizer)
            scaler.update()
        results.append(weight.detach())
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    ("name", "said"),
    [("AdamW", "takes torch's fused form on cpu"), ("RAdam", "there is no C++ compiler")],
)
def test_without_a_compiler_torchs_fused_form_is_taken_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(adoption.cpu_optimizers, "available", lambda: False)
    optimizer = getattr(torch.optim, name)([torch.ones(3, requires_grad=True)], lr=0.1)
    assert said in adoption.accelerate_optimizer(optimizer)
