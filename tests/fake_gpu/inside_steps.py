"""Tests inside a process with the fake device: a training step of own kernels, from all sides.

It equals the CPU's, runs on the stream that is current, never makes the host wait, and goes through
the compiler's tracing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from fake_gpu import work
from torch import nn

from gallery_lib.data.images.image_folder import finish_batch
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.cross_entropy import cross_entropy
from gallery_lib.kernels.runtime import operators
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.optim.sync_free import SGD

STEPS, IMAGES, SIZE, CLASSES = 4, 6, 12, 5


@pytest.fixture(autouse=True, params=[0, 1], ids=["first device", "second device"])
def device(request, monkeypatch):
    """Return the device; the current one is the first, whatever the test's own is."""
    if request.param >= torch.cuda.device_count():
        pytest.skip("needs FAKE_GPU_DEVICES=2")
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "1")
    monkeypatch.setenv("GALLERY_KERNELS", "1")
    return torch.device("cuda", request.param)


class BatchNormReLU(nn.BatchNorm2d):
    """relu(batch norm): by our operator where `own` is set."""

    own = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.own:
            return nn.functional.relu(super().forward(x))
        values = (self.running_mean, self.running_var, self.weight, self.bias)
        return batch_norm_relu(x, *values, momentum=self.momentum, eps=self.eps)


class Net(nn.Module):
    """Convolutions with batch norms, one added to another, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Sequential(nn.Conv2d(planes, 16, 3, padding=1, bias=False), BatchNormReLU(16))
            for planes in (3, 16, 16)
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head((self.third(self.second(x)) + x).mean((2, 3)))


def net() -> Net:
    torch.manual_seed(0)
    return Net().to(memory_format=torch.channels_last)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=torch.uint8, generator=draw),
            torch.randint(0, CLASSES, (IMAGES,), generator=draw),
        )
        for _ in range(STEPS)
    ]


def on_the_cpu() -> list[float]:
    """Return the losses of plain torch on the CPU."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for images, labels in batches():
        x, labels = finish_batch((images, labels), torch.channels_last)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Training:
    """The same training with own kernels on a device."""

    def __init__(self, device: torch.device, compiler: Callable | None = None) -> None:
        self.device = device
        self.model = net().to(device)
        for _, norm in (self.model.first, self.model.second, self.model.third):
            norm.own = True
        self.call = self.model if compiler is None else compiler(self.model)
        self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = GradScaler("cuda", init_scale=2.0**10)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, labels = finish_batch(batch, torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(self.call(x), labels, label_smoothing=0.1)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def on_device(self) -> list[tuple[torch.Tensor, ...]]:
        return [tuple(part.to(self.device) for part in batch) for batch in batches()]


def test_the_losses_are_those_of_the_cpu(device):
    training, before = Training(device), operators.counts()
    losses = [training.step(batch) for batch in training.on_device()]
    assert torch.stack(losses).tolist() == pytest.approx(on_the_cpu(), rel=1e-5)
    used = operators.counts() - before
    assert used and all(how == operators.KERNEL for _, how in used), used
    assert training.scaler.skipped_steps() == 0


@pytest.mark.parametrize(
    "context",
    [work.on_a_side_stream, lambda device: work.waiting_forbidden()],
    ids=["side stream", "waiting forbidden"],
)
def test_a_step_runs_on_the_current_stream_and_never_makes_the_host_wait(device, context):
    training = Training(device)
    first, *rest = training.on_device()
    losses = [training.step(first)]
    with context(device):
        losses += [training.step(batch) for batch in rest]
    assert torch.stack(losses).tolist() == pytest.approx(on_the_cpu(), rel=1e-5)


def test_an_overflow_is_skipped_without_waiting(device):
    training = Training(device)
    first, second, *_ = training.on_device()
    training.step(first)
    torch.cuda.synchronize(device)
    before = copy.deepcopy(training.model.state_dict())
    training.scaler._scale.fill_(float("inf"))
    with work.waiting_forbidden():
        training.step(second)
    assert training.scaler.skipped_steps() == 1
    for name, value in training.model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(before[name].cpu(), value.cpu()), name


def test_the_compiler_traces_a_step_whole(device):
    training = Training(
        device, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)
    )
    losses = [training.step(batch) for batch in training.on_device()]
    assert torch.stack(losses).tolist() == pytest.approx(on_the_cpu(), rel=1e-5)


def test_every_operator_tells_the_compiler_its_results_without_running():
    names = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("gallery::") and "." not in name
    ]
    known = torch._library.simple_registry.singleton
    assert len(names) >= 8
    assert [name for name in names if known.find(name).fake_impl.kernel is None] == []
