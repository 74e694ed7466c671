"""Which of our operators a run with compiler-opt uses, and that its results say so.

On the CPU a run uses none but for a loss over many logits. These tests ask for them there, where
plain torch stands in for most kernels.
"""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import picture_task
import pytest
import torch
from own_operators import on_cpu_too

from gallery_lib.compiler import backend
from gallery_lib.compiler.calls import set_compiled
from gallery_lib.config.switches import kernels_enabled
from gallery_lib.data.images.image_folder import finish_batch
from gallery_lib.data.text.masking import IGNORED
from gallery_lib.kernels import cross_entropy as own_cross_entropy
from gallery_lib.kernels.runtime import operators
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

    def eager(model, options, device, channels_last):
        set_compiled(model, model._call_impl)
        return "nothing: a test of kernels"

    monkeypatch.setattr(backend, "_compile", eager)


def with_operators(config, observer=None):
    """Return the results of a training that uses our operators on the CPU."""
    with on_cpu_too():
        return train(config, observer)


def losses(results) -> list[float]:
    return [loss for _, loss in results.loss["curve"]]


def ran(results) -> dict[str, str]:
    """Return operators and what ran for them: `{"optimizer_step_": "plain torch, 12 calls"}`."""
    return dict(part.rstrip(")").split(" (") for part in results.techniques["kernels"].split("), "))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
def test_a_run_with_our_operators_trains_as_one_without_and_names_them(name, nothing_compiled):
    config = picture_task.config(name, compiler_opt=True, max_grad_norm=0.5)
    ours = with_operators(config)
    theirs = with_operators(dataclasses.replace(config, kernels=False))
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)
    assert losses(ours)[-1] < losses(ours)[0]
    assert ran(ours) == {
        "cross_entropy_gradient": f"{LOSS}, {STEPS} calls",
        "cross_entropy_rows": f"{LOSS}, {STEPS} calls",
        "optimizer_step_": f"plain torch, {STEPS} calls",
        "prepare_images": f"plain torch, {STEPS + HELD_OUT_BATCHES} calls",
    }
    assert (ours.techniques["optimizer"], theirs.techniques["optimizer"]) == ("sync-free", "fused")
    assert theirs.techniques["kernels"] == "not used, switched off (--no-kernels)"


def test_an_optimizer_without_a_sync_free_form_stays_torchs(nothing_compiled):
    config = picture_task.config("NAdam", compiler_opt=True, max_grad_norm=0.5)
    ours = with_operators(config)
    assert ours.techniques["optimizer"] == "torch's own"
    assert set(ran(ours)) == {"cross_entropy_gradient", "cross_entropy_rows", "prepare_images"}
    assert losses(ours) == pytest.approx(
        losses(train(dataclasses.replace(config, kernels=False))), rel=1e-4
    )


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


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_schedule_of_torch_s_goes_on_with_the_operators_as_without(name, nothing_compiled):
    config = picture_task.config("AdamW", compiler_opt=True, lr_schedule=name, lr_warmup_steps=3)
    ours = with_operators(config)
    theirs = with_operators(dataclasses.replace(config, kernels=False))
    assert {"optimizer_step_", "cross_entropy_rows"} <= ran(ours).keys()
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)


def test_clipping_changes_the_training():
    clipped, free = (train(picture_task.config("SGD", max_grad_norm=norm)) for norm in (0.01, None))
    assert losses(clipped)[0] == losses(free)[0]
    assert losses(clipped)[-1] > losses(free)[-1]


def test_batches_have_the_same_bits_with_and_without_the_operator():
    batch = torch.randint(0, 256, (5, 17, 23, 3), dtype=torch.uint8), torch.arange(5)
    expected = finish_batch(batch, torch.channels_last)[0]
    before = operators.counts()
    with pytest.MonkeyPatch.context() as patch, on_cpu_too():
        patch.setenv("GALLERY_COMPILER_OPT", "1")
        ours = finish_batch(batch, torch.channels_last)[0]
    assert (operators.counts() - before).total() == 1
    assert torch.equal(ours, expected) and ours.is_contiguous(memory_format=torch.channels_last)


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
    assert set(operators.counts() - before) == {
        (f"cross_entropy_{part}", LOSS) for part in ("rows", "gradient")
    }
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
    operators = {"cross_entropy_gradient", "cross_entropy_rows", "prepare_images"}
    # Without a scaler torch's fused AdamW takes less of the host.
    if name != "AdamW" or amp.get("amp_dtype") == "fp16":
        operators.add("optimizer_step_")
    # Before clipping, torch's `unscale_` looks for overflow.
    if amp.get("amp_dtype") == "fp16" and "max_grad_norm" not in amp:
        operators.add("gradient_statistics")
    assert set(ran(ours)) == operators and all("own kernel" in how for how in ran(ours).values())
    assert theirs.techniques["kernels"] == "not used, switched off (--no-kernels)"
    assert ours.skipped_steps == theirs.skipped_steps


@pytest.mark.gpu
def test_batches_have_the_same_bits_on_a_gpu(cuda_kernels, monkeypatch):
    batch = (
        torch.randint(0, 256, (33, 60, 71, 3), dtype=torch.uint8, device=cuda_kernels),
        torch.arange(33),
    )
    ours = finish_batch(batch, torch.channels_last)[0]
    monkeypatch.setenv("GALLERY_KERNELS", "0")
    assert torch.equal(ours, finish_batch(batch, torch.channels_last)[0])
