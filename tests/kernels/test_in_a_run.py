"""Which of our operators a run with compiler-opt uses, and that its results say so.

On the CPU a run uses none but for a loss over many logits. These tests ask for them there, where
plain torch stands in for most kernels. On a GPU an update with our scaler, optimizer and schedule
equals torch's, without a sync, and what is saved there goes on elsewhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from types import SimpleNamespace

import picture_task
import pytest
import torch
from optim import training
from optim.training import OVERFLOW_AT, PAIRS, SCALING, model, warmup
from own_operators import on_cpu_too
from stand_in_compilers import leave_eager
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.compiler import backend
from gallery_lib.config.switches import kernels_enabled
from gallery_lib.data.masking import IGNORED
from gallery_lib.kernels import cross_entropy as own_cross_entropy
from gallery_lib.kernels.runtime import operators
from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.optim.grad_scaler import GradScaler, Updates
from gallery_lib.system import hardware
from gallery_lib.tasks.domains import cross_entropy, language_modelling
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer

STEPS, HELD_OUT_BATCHES = 12, 8
LOSS = "own kernel" if own_cross_entropy.available() else "plain torch"
"""What computes our cross-entropy on the CPU: C++, where it can be built."""


@pytest.fixture(autouse=True)
def operators_in_every_run(monkeypatch):
    """Choose channels_last as on a GPU, and our cross-entropy for few logits too.

    The operator for images is for that layout.
    """
    monkeypatch.setattr(hardware, "prefers_channels_last", lambda device_type: True)
    monkeypatch.setattr(cross_entropy, "LARGE", 0)


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Switch the compiler off: it is not what is tested here, and takes its time."""
    monkeypatch.setattr(backend, "_compile", leave_eager)


def with_operators(config, observer=None):
    """Return the results of a training that uses our operators on the CPU."""
    with on_cpu_too():
        return train(config, observer)


def losses(results) -> list[float]:
    return [loss for _, loss in results.loss["curve"]]


def ran(results) -> dict[str, str]:
    """Return operators and what ran for them: `{"optimizer_step_": "plain torch, 12 calls"}`."""
    return dict(part.rstrip(")").split(" (") for part in results.techniques["kernels"].split("), "))


CLIPPED, OWN_LOSS = {"max_grad_norm": 0.5}, ("cross_entropy_gradient", "cross_entropy_rows")


@pytest.mark.parametrize(
    ("name", "options", "form"),
    [
        ("AdamW", CLIPPED, "sync-free"),
        ("SGD", CLIPPED, "sync-free"),
        ("RMSprop", CLIPPED, "sync-free"),
        ("NAdam", CLIPPED, "torch's own"),
        ("AdamW", {"lr_schedule": "linear", "lr_warmup_steps": 3}, "sync-free"),
        ("AdamW", {"lr_schedule": "cosine", "lr_warmup_steps": 3}, "sync-free"),
    ],
)
def test_a_run_with_our_operators_trains_as_one_without_and_names_them(
    name, options, form, nothing_compiled
):
    config = picture_task.config(name, compiler_opt=True, **options)
    ours = with_operators(config)
    theirs = with_operators(dataclasses.replace(config, kernels=False))
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)
    assert losses(ours)[-1] < losses(ours)[0]
    expected = dict.fromkeys(OWN_LOSS, f"{LOSS}, {STEPS} calls")
    expected["prepare_images"] = f"plain torch, {STEPS + HELD_OUT_BATCHES} calls"
    if form == "sync-free":
        expected["optimizer_step_"] = f"plain torch, {STEPS} calls"
        assert theirs.techniques["optimizer"] == "fused"
    assert ran(ours) == expected and ours.techniques["optimizer"] == form
    assert theirs.techniques["kernels"] == "not used, switched off (--no-kernels)"


class Toggle(Observer):
    """Observer that records in the midst of a run whether the kernels are switched on."""

    def before_step(self, session, step, batch):
        self.kernels = kernels_enabled()


def test_a_run_on_the_cpu_uses_none_and_says_why(nothing_compiled):
    before, toggle, variables = operators.counts(), Toggle(), dict(os.environ)
    results = train(picture_task.config("AdamW", compiler_opt=True), toggle)
    assert results.techniques["kernels"] == "not used, no CUDA device"
    assert results.techniques["optimizer"] == "fused"
    assert operators.counts() == before
    assert toggle.kernels and os.environ == variables


def test_the_baseline_uses_none_also_where_they_could_be():
    before, toggle = operators.counts(), Toggle()
    results = with_operators(picture_task.config("AdamW", max_grad_norm=0.5), toggle)
    assert results.techniques == {}
    assert operators.counts() == before and not toggle.kernels


def test_clipping_changes_the_training():
    clipped, free = (train(picture_task.config("SGD", max_grad_norm=norm)) for norm in (0.01, None))
    assert losses(clipped)[0] == losses(free)[0]
    assert losses(clipped)[-1] > losses(free)[-1]


def test_a_language_models_loss_takes_16_bit_logits_as_they_are(monkeypatch):
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "1")
    drawn = torch.randn(2, 8, 50, generator=torch.Generator().manual_seed(0))
    logits = drawn.bfloat16().requires_grad_()
    batch = {
        "labels": torch.arange(16).reshape(2, 8).masked_fill(torch.arange(8) % 3 == 0, IGNORED)
    }

    def found() -> tuple[torch.Tensor, torch.Tensor]:
        loss = language_modelling.loss(lambda **names: SimpleNamespace(logits=logits), batch)
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    expected, before = found(), operators.counts()
    with on_cpu_too():
        ours = found()
    assert set(operators.counts() - before) == {(name, LOSS) for name in OWN_LOSS}
    assert (ours[0].dtype, ours[1].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(ours[0], expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(ours[1], expected[1], rtol=2**-7, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "amp",
    [
        {"amp_level": "O0", "max_grad_norm": 0.5},
        {"amp_level": "O1", "amp_dtype": "bf16", "max_grad_norm": 0.5},
        {"amp_level": "O1", "amp_dtype": "fp16", "max_grad_norm": 0.5},
        {"amp_level": "O1", "amp_dtype": "fp16"},
    ],
)
@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "RAdam"])
def test_on_a_gpu_a_run_uses_the_kernels(name, amp, cuda_kernels, nothing_compiled):
    config = picture_task.config(name, compiler_opt=True, **amp)
    ours, theirs = train(config), train(dataclasses.replace(config, kernels=False))
    assert losses(ours) == pytest.approx(
        losses(theirs), rel=1e-3 if amp["amp_level"] == "O0" else 3e-2
    )
    operators = {*OWN_LOSS, "prepare_images"}
    # Without a scaler torch's fused AdamW takes less of the host.
    if name != "AdamW" or amp.get("amp_dtype") == "fp16":
        operators.add("optimizer_step_")
    # Before clipping, torch's `unscale_` looks for overflow.
    if amp.get("amp_dtype") == "fp16" and "max_grad_norm" not in amp:
        operators.add("gradient_statistics")
    assert set(ran(ours)) == operators and all("own kernel" in how for how in ran(ours).values())
    assert theirs.techniques["kernels"] == "not used, switched off (--no-kernels)"
    assert ours.skipped_steps == theirs.skipped_steps


def updated(pair, device: torch.device, ours: bool) -> tuple[list[float], Updates]:
    """Return losses and updates, all ours or all torch's; in ours waiting for the device raises."""
    net = model().to(device)
    optimizer = pair.ours(net.parameters()) if ours else pair.theirs(net.parameters())
    scaler = (GradScaler if ours else torch.amp.GradScaler)("cuda", **SCALING)
    updates = Updates(optimizer, scaler, LambdaLR(optimizer, warmup), 0.3)

    taken = itertools.count()

    def take() -> None:
        # The first step compiles.
        torch.cuda.set_sync_debug_mode("error" if ours and next(taken) else "default")
        try:
            updates.take()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return training.losses(net, optimizer, range(60), scaler, OVERFLOW_AT, take), updates


@pytest.mark.gpu
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_updates_do_not_wait_and_are_torchs(pair, cuda_kernels):
    ours, chosen = updated(pair, cuda_kernels, ours=True)
    theirs, other = updated(pair, cuda_kernels, ours=False)
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    assert chosen.skipped_steps() == other.skipped_steps() == sum(at < 60 for at in OVERFLOW_AT)
    assert chosen.scaler.state_dict() == other.scaler.state_dict()
    assert chosen.schedule.state_dict() == other.schedule.state_dict()


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_fused_optimizers_state_goes_on_wherever_it_is_loaded(name, where, cuda_kernels):
    kind, found = getattr(torch.optim, name), []
    plain, net = model(), model().to(cuda_kernels)
    usual = training.losses(plain, kind(plain.parameters(), lr=1e-2), range(12))
    optimizer = kind(net.parameters(), lr=1e-2)
    said = accelerate_optimizer(optimizer, scaled=False)
    assert said == f"{name} takes torch's fused form on {cuda_kernels}."
    found += training.losses(net, optimizer, range(4))
    for device in (torch.device(where), cuda_kernels):
        assert optimizer.state_dict()["param_groups"][0]["fused"] is None
        other = model().to(device)
        loaded = kind(other.parameters(), lr=1e-2)
        accelerate_optimizer(loaded, scaled=False)
        other.load_state_dict(net.state_dict())
        loaded.load_state_dict(optimizer.state_dict())
        assert loaded.param_groups[0]["fused"] is (None if device.type == "cpu" else True)
        found += training.losses(other, loaded, range(len(found), len(found) + 4))
        net, optimizer = other, loaded
    assert found == pytest.approx(usual, rel=1e-3)
