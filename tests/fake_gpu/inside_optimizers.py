"""Tests inside a process with the fake device: what a sync-free step is given may change.

Each training is compared with torch's optimizer on the CPU, to which the same happens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from fake_gpu import work
from torch import Tensor, nn

from gallery_lib.kernels.gradient_statistics import gradient_statistics
from gallery_lib.kernels.optimizer_step import PackedStep
from gallery_lib.kernels.runtime import launch, operators
from gallery_lib.optim import sync_free

STEPS = 60
SHAPES = ((6, 4, 3, 3), (5,), (), (0,), (9, 7))
ARGUMENTS = {
    "AdamW": {"lr": 3e-3, "weight_decay": 1e-2},
    "SGD": {"lr": 0.02, "momentum": 0.9, "nesterov": True},
    "RMSprop": {"lr": 1e-3, "momentum": 0.9, "centered": True},
    "RAdam": {"lr": 3e-3, "weight_decay": 1e-2},
}


@pytest.fixture(autouse=True)
def kernels_on(monkeypatch):
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "1")
    monkeypatch.setenv("GALLERY_KERNELS", "1")


class Training:
    """Weights on a device with drawn gradients, and their optimizer."""

    def __init__(self, name: str, device: str) -> None:
        self.device = torch.device(device)
        package = sync_free if device == "cuda" else torch.optim
        self.optimizer = getattr(package, name)(
            [self.weight(shape, number) for number, shape in enumerate(SHAPES)], **ARGUMENTS[name]
        )

    def weight(self, shape: tuple[int, ...], seed: int) -> nn.Parameter:
        value = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device)
        channels_last = len(shape) == 4
        return nn.Parameter(value.to(memory_format=torch.channels_last) if channels_last else value)

    @property
    def weights(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def step(self, number: int, change: Callable[[Training, int], None]) -> None:
        draw = torch.Generator().manual_seed(1000 + number)
        for p in self.weights:
            # In the weight's layout, as autograd has it: of others no launch is kept.
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=draw))
        change(self, number)
        self.optimizer.step()


def new_gradients(training: Training, step: int) -> None:
    """Change nothing more: gradients are new tensors in each step."""


def gradients_that_stay(training: Training, step: int) -> None:
    if step:
        for p, kept in zip(training.weights, training.kept, strict=True):
            p.grad = kept.copy_(p.grad)
    training.kept = [p.grad for p in training.weights]


def other_memory(training: Training, step: int) -> None:
    if step % 20 == 10:
        for p in training.weights:
            p.data = 1.5 * p.data


def another_layout(training: Training, step: int) -> None:
    if step == 20:
        training.weights[0].data = training.weights[0].data.contiguous()


def another_weight(training: Training, step: int) -> None:
    if step == 20:
        new = training.weight((3, 2), 50)
        new.grad = torch.ones_like(new)
        training.optimizer.state.pop(training.weights[1])
        training.optimizer.param_groups[0]["params"][1] = new


def another_group(training: Training, step: int) -> None:
    if step == 20:
        new = training.weight((3, 2), 50)
        new.grad = torch.ones_like(new)
        training.optimizer.add_param_group({"params": [new], "lr": 0.01})


def other_options(training: Training, step: int) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] *= 0.97
        if step == 30:
            group["weight_decay"] = 0.05


def no_gradient(training: Training, step: int) -> None:
    if step % 7 == 3:
        training.weights[step % 3].grad = None


def a_loaded_state(training: Training, step: int) -> None:
    if step == 20:
        training.state = copy.deepcopy(training.optimizer.state_dict())
    if step in (30, 45):
        training.optimizer.load_state_dict(copy.deepcopy(training.state))


def replaced_states(training: Training, step: int) -> None:
    if step == 30:
        for state in training.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and name != "step":
                    state[name] = 2 * value


def another_part(training: Training, step: int) -> None:
    """Have RMSprop's momentum become the average of gradients, in the same memory."""
    training.optimizer.param_groups[0].update(centered=step >= 20, momentum=0.9 * (step < 20))
    for state in training.optimizer.state.values() if step == 20 else ():
        state["grad_avg"] = state.pop("momentum_buffer").zero_()


CHANGES = (
    new_gradients, gradients_that_stay, other_memory, another_layout, another_weight,
    another_group, other_options, no_gradient, a_loaded_state, replaced_states,
)  # fmt: skip


def everything(training: Training, step: int) -> None:
    for change in CHANGES[2:]:
        change(training, step)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("AdamW", change) for change in CHANGES),
        *((name, everything) for name in ARGUMENTS),
        ("RMSprop", another_part),
    ],
)
def test_a_step_takes_what_is_there_now(name, change):
    trainings, before = [Training(name, device) for device in ("cuda", "cpu")], operators.counts()
    for number in range(STEPS):
        for training in trainings:
            training.step(number, change)
    ours, theirs = ([p.detach().cpu() for p in training.weights] for training in trainings)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    steps = (operators.counts() - before)["optimizer_step_", operators.KERNEL]
    assert steps >= (20 if change in (another_layout, everything) else STEPS)


def test_launches_are_packed_once_as_long_as_nothing_but_gradients_moves(monkeypatch):
    packed = []

    def noted(*arguments):
        packed.append(PackedStep(*arguments))
        return packed[-1]

    monkeypatch.setattr(sync_free, "PackedStep", noted)
    training = Training("AdamW", "cuda")
    for number in range(19):  # weights move in step 10
        training.step(number, lambda *step: (other_options(*step), other_memory(*step)))
    assert len(packed) == 2


def launches_of(call: Callable[[], object]) -> dict[str, int]:
    """Return the launches of own kernels in a call."""
    before = work.counts()
    call()
    counts = work.counts() - before
    start = "launch own kernel "
    return {name.removeprefix(start): n for name, n in counts.items() if name.startswith(start)}


@pytest.mark.parametrize(
    ("nvrtc", "of_driver", "launches"), [("12.1", 12010, 1), ("12.0", 13000, 7), ("13.0", 12000, 7)]
)
def test_hundreds_of_tensors_are_one_launch_where_its_arguments_may_be_long(
    monkeypatch, nvrtc, of_driver, launches
):
    monkeypatch.setattr(launch, "versions", lambda: {"nvrtc": nvrtc})
    monkeypatch.setattr("cuda.bindings.driver.cuDriverGetVersion", lambda: (0, of_driver))
    for module in ("optimizer_step", "gradient_statistics"):
        place = f"gallery_lib.kernels.{module}.tensors_of_a_launch"
        monkeypatch.setattr(place, launch.tensors_of_a_launch.__wrapped__)  # what is not kept
    weights = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(300)]
    for p in weights:
        p.grad = torch.full_like(p, 2.0)
    optimizer = sync_free.AdamW(weights, lr=0.25, weight_decay=0.0)
    assert launches_of(optimizer.step) == {"advance": launches, "adamw": launches}
    counts = torch.stack([optimizer.state[p]["step"] for p in weights])
    assert counts.eq(1).all().item()
    torch.testing.assert_close(torch.stack(weights).cpu(), torch.full((300, 3), 0.75))
    norms: list[Tensor] = []
    gradients = [p.grad for p in weights]
    counted = launches_of(lambda: norms.extend(gradient_statistics(gradients)))
    assert counted == {"sum_squares": launches, "finish_norm": 1}
    assert norms[0].item() == pytest.approx(60.0) and norms[1].item() == 0
