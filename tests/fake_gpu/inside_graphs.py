"""Tests inside a process with the fake device: a captured model trains as an eager one does.

The compiler is torch's `cudagraphs`: it captures and replays as Inductor does, and its operators
are eager's, so values can be compared.
"""

from __future__ import annotations

import weakref

import pytest
import torch
from fake_gpu import work
from torch import nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.compiler import backend
from gallery_lib.compiler.backend import compile_calls

STEPS, BATCH = 6, 8


@pytest.fixture(autouse=True)
def captured_operator_by_operator(monkeypatch):
    def captured(model, options, device, channels_last):
        compile_calls(model, backend="cudagraphs")
        return "cudagraphs"

    monkeypatch.setattr(backend, "_compile", captured)
    yield
    torch._dynamo.reset()


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 3))


class Joined(nn.Module):
    """A layer of two weights that are one in its product, so their gradients share memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = (nn.Parameter(torch.randn(4, 6)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.cat([self.first, self.second]).t()


class Training:
    """A model with its optimizer, plain or accelerated, that trains on drawn batches."""

    def __init__(self, *, accelerated: bool, model: nn.Module | None = None) -> None:
        self.model = (model or model_of(3)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        if accelerated:
            self.model, self.optimizer = accelerate(self.model, self.optimizer, Config())
        draw = torch.Generator().manual_seed(5)
        sizes = [BATCH] * (3 * STEPS) + [BATCH // 2]
        self.batches = [torch.randn(size, 6, generator=draw).cuda() for size in sizes]

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.model(batch) ** 2).mean()

    def weights(self) -> list[torch.Tensor]:
        return [value.cpu() for value in self.model.state_dict().values()]


def both() -> tuple[Training, Training]:
    return Training(accelerated=True), Training(accelerated=False)


def same(ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def replays() -> int:
    return work.counts()["call cudaGraphLaunch"]


def test_steps_are_replayed_and_train_as_eager_ones():
    ended = []
    for training in both():
        losses, before = [], replays()
        for batch in training.batches:
            training.optimizer.zero_grad(set_to_none=True)
            loss = training.loss(batch)
            loss.backward()
            training.optimizer.step()
            losses.append(loss.detach())
        ended.append((replays() - before, torch.stack(losses).cpu(), training.weights()))
    ours, theirs = ended
    assert ours[0] >= 2 * (STEPS - 2) and theirs[0] == 0
    same(ours[1:], theirs[1:])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up_over_replays(set_to_none):
    ended = []
    for training in both():
        for step in range(STEPS):
            training.optimizer.zero_grad(set_to_none=set_to_none)
            for batch in training.batches[3 * step : 3 * step + 3]:
                training.loss(batch).backward()
            training.optimizer.step()
        ended.append(training.weights())
    same(*ended)


def test_gradients_that_share_memory_add_up_over_replays():
    ended = []
    for accelerated in (True, False):
        training = Training(accelerated=accelerated, model=Joined())
        for batch in training.batches[:STEPS]:
            training.loss(batch).backward()
        ended.append([p.grad.cpu() for p in training.model.parameters()])
    same(*ended)


def test_weights_that_are_trained_later_add_up_as_well():
    ended = []
    for accelerated in (True, False):
        model = model_of(3)
        model[0].requires_grad_(False)
        training = Training(accelerated=accelerated, model=model)
        for frozen in (True, False):
            training.model[0].requires_grad_(not frozen)
            for batch in training.batches[:STEPS]:
                training.loss(batch).backward()
        ended.append([p.grad.cpu() for p in training.model.parameters()])
    same(*ended)


def test_no_gradients_are_kept_alive_after_they_are_dropped():
    training = Training(accelerated=True)
    for batch in training.batches[:STEPS]:
        training.loss(batch).backward()
    kept = [weakref.ref(p.grad) for p in training.model.parameters()]
    training.optimizer.zero_grad(set_to_none=True)
    assert [grad() for grad in kept] == [None] * len(kept)


def test_outputs_are_kept_over_replays():
    ended = []
    for training in both():
        outputs = []
        for batch in training.batches[:STEPS]:
            training.optimizer.zero_grad()
            output = training.model(batch)
            outputs.append(output)
            output.square().mean().backward()
            training.optimizer.step()
        ended.append([output.detach().cpu() for output in outputs])
    same(*ended)


def test_two_forward_passes_share_a_backward_pass():
    ended = []
    for training in both():
        for step in range(STEPS):
            first, second = training.batches[2 * step : 2 * step + 2]
            training.optimizer.zero_grad()
            (training.loss(first) + training.loss(second)).backward()
            training.optimizer.step()
        ended.append(training.weights())
    same(*ended)


def test_evaluation_between_steps_changes_nothing():
    ended = []
    for training in both():
        seen = []
        for batch in training.batches[:STEPS]:
            training.optimizer.zero_grad()
            training.loss(batch).backward()
            training.optimizer.step()
            training.model.eval()
            with torch.no_grad():
                seen += [training.model(other) for other in training.batches[:2]]
            training.model.train()
        ended.append([output.cpu() for output in seen])
    same(*ended)


def test_weights_that_are_loaded_are_used_by_the_next_replay():
    training = Training(accelerated=True)
    for batch in training.batches[:STEPS]:
        training.loss(batch).backward()
    training.model.load_state_dict(model_of(4).state_dict())
    expected = model_of(4)(training.batches[0].cpu())
    same(training.model(training.batches[0]).cpu(), expected)


def test_techniques_name_the_graphs_and_the_option_turns_them_off(monkeypatch):
    monkeypatch.undo()
    assert "CUDA graphs" in techniques(Training(accelerated=True).model)["compiler"]
    config = Config()
    config.compiler.cuda_graphs = False
    model = accelerate(model_of(1), config)
    assert "CUDA graphs" not in techniques(model)["compiler"]
