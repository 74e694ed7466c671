"""Tests inside a process with the fake device or a GPU: a captured model trains as an eager one.

On the fake device the compiler is torch's `cudagraphs`: it captures and replays as Inductor does,
and its operators are eager's, so values can be compared. On a GPU (`-m gpu`) it is Inductor.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import weakref
from functools import partial

import pytest
import torch
from stand_in_compilers import capture_graphs
from torch import nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.compiler import backend, cuda_graphs

pytestmark = pytest.mark.gpu
EMULATED = hasattr(ctypes.CDLL(None), "fake_gpu_report")
STEPS, BATCH = 6, 8


@pytest.fixture(autouse=True)
def replays(monkeypatch):
    seen, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda g: (seen.append(g), replay(g))[1])
    if EMULATED:
        monkeypatch.setattr(backend, "_compile", capture_graphs)
    yield seen
    torch._dynamo.reset()


def model_of(seed: int, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(dropout)
    return nn.Sequential(*layers, nn.Linear(16, 3))


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
        self.model, self.accelerated = (model or model_of(3)).cuda(), accelerated
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        if accelerated:
            self.model, self.optimizer = accelerate(self.model, self.optimizer, Config())
        draw = torch.Generator().manual_seed(5)
        sizes = [BATCH] * (3 * STEPS) + [BATCH // 2, BATCH]  # a tail, and the next epoch
        self.batches = [torch.randn(size, 6, generator=draw).cuda() for size in sizes]

    def loss(self, *batches: torch.Tensor) -> torch.Tensor:
        return sum((self.model(batch) ** 2).mean() for batch in batches)

    def accumulate(self, batches: list[torch.Tensor]) -> list[torch.Tensor]:
        """Add up gradients over the batches, and return them."""
        for batch in batches:
            self.loss(batch).backward()
        return [p.grad.cpu() for p in self.model.parameters() if p.requires_grad]

    def update(self, *batches: torch.Tensor) -> torch.Tensor:
        """Take a step on the sum of the batches' losses, and return it."""
        self.optimizer.zero_grad()
        loss = self.loss(*batches)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def weights(self) -> list[torch.Tensor]:
        return [value.cpu() for value in self.model.state_dict().values()]


def same(ours, theirs) -> None:
    off = {"rtol": 1e-5, "atol": 1e-6} if EMULATED else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(ours, theirs, **off)


def steps(training):
    losses = [training.update(batch) for batch in training.batches]
    return [torch.stack(losses).cpu(), *training.weights()]


def steps_of_three_batches(training, set_to_none):
    for step in range(STEPS):
        training.optimizer.zero_grad(set_to_none=set_to_none)
        training.accumulate(training.batches[3 * step : 3 * step + 3])
        training.optimizer.step()
    return training.weights()


def sums_of_gradients(training):
    return training.accumulate(training.batches[:STEPS])


def weights_that_are_trained_later(training):
    for frozen in (True, False):
        training.model[0].requires_grad_(not frozen)
        gradients = training.accumulate(training.batches[:STEPS])
    return gradients


def outputs_that_are_kept(training):
    outputs = []
    for batch in training.batches[:STEPS]:
        training.optimizer.zero_grad()
        outputs.append(training.model(batch))
        outputs[-1].square().mean().backward()
        training.optimizer.step()
    return [output.detach().cpu() for output in outputs]


def two_forward_passes_for_a_backward_pass(training):
    for step in range(STEPS):
        training.update(*training.batches[2 * step : 2 * step + 2])
    return training.weights()


def evaluation_between_steps(training):
    seen = []
    for batch in training.batches[:STEPS]:
        training.update(batch)
        training.model.eval()
        with torch.no_grad():
            seen += [training.model(other) for other in training.batches[:2]]
        training.model.train()
    return [output.cpu() for output in seen]


def epochs_whose_last_batch_is_smaller(training):
    losses = []
    for first in range(0, 2 * STEPS, 2):
        losses += [training.update(batch) for batch in training.batches[first : first + 2]]
        losses.append(training.update(training.batches[-1]))
    return [torch.stack(losses).cpu(), *training.weights()]


def evaluation_before_training(training):
    training.model.eval()
    with torch.no_grad():
        seen = [training.model(training.batches[-1]) for _ in range(3)]
    training.model.train()
    return [*(one.cpu() for one in seen), *steps(training)]


def gradients_that_are_kept(training):
    """Keep what `.grad` held, of weights and inputs, and views of it, over later steps."""
    kept = []
    for batch in training.batches[:STEPS]:
        training.optimizer.zero_grad(set_to_none=True)
        batch = batch.clone().requires_grad_()
        training.loss(batch).backward()
        kept += [p.grad for p in training.model.parameters()] + [batch.grad]
        training.optimizer.step()
    return [one.cpu() for one in kept]


def gradients_of_two_losses(training):
    """Project the gradients of losses on each other, as methods for several tasks do."""
    parameters, kept = [*training.model.parameters()], []
    for first in range(0, 2 * STEPS, 2):
        pair = []
        for batch in training.batches[first : first + 2]:
            pair.append(torch.autograd.grad(training.loss(batch), parameters))
        for p, one, other in zip(parameters, *pair, strict=True):
            p.grad = one - other * (one * other).sum() / other.square().sum()
        training.optimizer.step()
        kept += [*pair[0], *pair[1]]
    return [*(one.cpu() for one in kept), *training.weights()]


def two_backward_passes_for_a_forward_pass(training):
    kept = []
    for batch in training.batches[:STEPS]:
        output = training.model(batch)
        for last, loss in enumerate((output.square().mean(), output.sin().mean())):
            training.optimizer.zero_grad(set_to_none=True)
            loss.backward(retain_graph=not last)
            kept += [p.grad for p in training.model.parameters()]
        training.optimizer.step()
    return [one.cpu() for one in kept]


def two_models_whose_gradients_add_up(training):
    """Call a model while the gradients of another one wait for its optimizer."""
    other = Training(accelerated=training.accelerated, model=model_of(7))
    for batch in training.batches[:STEPS]:
        training.loss(batch).backward()
        other.loss(batch).backward()
    return [p.grad.cpu() for each in (training, other) for p in each.model.parameters()]


def model_with_a_frozen_layer():
    model = model_of(3)
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("work_of", "model"),
    [
        (steps, None),
        (partial(steps_of_three_batches, set_to_none=True), None),
        (partial(steps_of_three_batches, set_to_none=False), None),
        (sums_of_gradients, Joined),
        (weights_that_are_trained_later, model_with_a_frozen_layer),
        (outputs_that_are_kept, None),
        (two_forward_passes_for_a_backward_pass, None),
        (evaluation_between_steps, None),
        (epochs_whose_last_batch_is_smaller, None),
        (evaluation_before_training, None),
        (gradients_that_are_kept, None),
        (gradients_of_two_losses, None),
        (two_backward_passes_for_a_forward_pass, None),
        (two_models_whose_gradients_add_up, None),
    ],
)
def test_replays_give_what_eager_steps_give(work_of, model, replays):
    results, counts = [], []
    for accelerated in (True, False):
        results.append(work_of(Training(accelerated=accelerated, model=model and model())))
        counts.append(len(replays))
    same(*results)
    assert counts[0] >= STEPS - 2 and counts[1] == counts[0]


@pytest.mark.skipif(EMULATED, reason="there a captured graph draws the same in each replay")
def test_each_pass_draws_another_mask():
    training = Training(accelerated=True, model=model_of(3, dropout=0.5))
    outputs = [training.model(training.batches[0]).detach() for _ in range(STEPS)]
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(outputs))


def _waits(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.abs().max() + 1)


def _waits_not(x: torch.Tensor) -> torch.Tensor:
    return x * (x.abs().max() + 1)


@torch.library.custom_op("gallery_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, waits: bool) -> torch.Tensor:
    """Scale by one more than the largest value, which may be read on the host."""
    return (_waits if waits else _waits_not)(x)


scaled.register_fake(lambda x, waits: torch.empty_like(x))
WAITS_IN_BACKWARD = False


def _keep_arguments(ctx, inputs, output) -> None:
    ctx.waits = WAITS_IN_BACKWARD


def _backward(ctx, gradient):
    return scaled(gradient, ctx.waits), None


scaled.register_autograd(_backward, setup_context=_keep_arguments)


class Scaled(nn.Module):
    def __init__(self, waits: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.dropout, self.last = nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)
        self.waits = waits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = scaled(self.first(x).relu(), self.waits)
        return self.last(self.dropout(hidden) if self.training else hidden)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_operator_that_waits_for_the_device_trains_uncaptured(where, monkeypatch, capsys):
    monkeypatch.setattr(cuda_graphs, "failure", "")
    monkeypatch.setattr(sys.modules[__name__], "WAITS_IN_BACKWARD", where == "backward")
    results = []
    for accelerated in (True, False):
        training = Training(accelerated=accelerated, model=Scaled(where == "forward"))
        training.model.dropout.p = 0.0
        results.append(steps(training))
    same(*results)
    said = capsys.readouterr().err
    assert said.count("cannot be captured") == said.count("config.compiler.cuda_graphs") == 1
    memory = torch.cuda.memory_allocated()
    drawn = [nn.functional.dropout(torch.ones(1000, device="cuda")) for _ in range(2)]
    assert not torch.equal(*drawn)
    del drawn, training, results
    assert torch.cuda.memory_allocated() <= memory


def test_no_gradients_are_kept_alive_after_they_are_dropped():
    training = Training(accelerated=True)
    training.accumulate(training.batches[:STEPS])
    kept = [weakref.ref(p.grad) for p in training.model.parameters()]
    training.optimizer.zero_grad(set_to_none=True)
    assert [grad() for grad in kept] == [None] * len(kept)


def test_weights_that_are_loaded_are_used_by_the_next_replay():
    training = Training(accelerated=True)
    training.accumulate(training.batches[:STEPS])
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
