"""Shapes that come again are compiled for themselves, and the others together."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gallery_lib.compiler.backend import compile_calls

LIMIT = 4


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A compiler that notes for which batch sizes graphs are made, and which of them run."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.run: list[str] = []

    def __call__(self, graph, examples):
        tensors = [one for one in examples if isinstance(one, torch.Tensor)]
        (size,) = (one.shape[0] for one in tensors if one.dim() > 1 and not one.requires_grad)
        dynamic = any(isinstance(one, torch.SymInt) for one in (*examples, size))
        name = "any" if dynamic else str(size)
        self.made.append(name)

        def run(*arguments):
            self.run.append(name)
            return graph.forward(*arguments)

        return run


def model_of(width: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )


def compiled(model: nn.Module, **options: int) -> tuple[nn.Module, Graphs]:
    graphs = Graphs()
    compile_calls(model, **options, backend=graphs)
    return model, graphs


def train(model: nn.Module, sizes: list[int]) -> list[torch.Tensor]:
    """Return the losses of steps on drawn batches of these sizes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw, losses = torch.Generator().manual_seed(1), []
    for size in sizes:
        optimizer.zero_grad()
        losses.append(model(torch.randn(size, 5, generator=draw)).square().mean())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


def evaluate(model: nn.Module, sizes: list[int]) -> list[torch.Tensor]:
    model.eval()
    with torch.no_grad():
        results = [model(torch.ones(size, 5)).mean() for size in sizes]
    model.train()
    return results


def test_a_smaller_last_batch_leaves_the_others_their_graph(capsys):
    (model, graphs), plain, sizes = compiled(model_of()), model_of(), 4 * [32, 32, 20]
    torch.testing.assert_close(train(model, sizes), train(plain, sizes))
    assert graphs.made == ["32", "20"]
    assert graphs.run == [str(size) for size in sizes]
    said = capsys.readouterr().err
    assert said.count("inputs of another shape. Up to 4 shapes") == 1


def test_an_evaluation_before_training_and_between_leaves_training_its_graph():
    (model, graphs), plain = compiled(model_of()), model_of()
    epoch, held_out, results = [32, 32, 20], [64, 64, 40], []
    for each in (model, plain):
        results.append([])
        for _ in range(3):
            results[-1] += evaluate(each, held_out) + train(each, epoch)
    torch.testing.assert_close(*results)
    assert sorted(graphs.made) == ["20", "32", "40", "64"]
    assert graphs.run == 3 * [str(size) for size in held_out + epoch]


def test_lengths_that_do_not_come_again_share_a_graph():
    model, graphs = compiled(model_of())
    train(model, list(range(2, 40)))
    assert graphs.made == ["2", "any"]


def test_a_length_among_others_that_comes_often_gets_its_own_graph():
    model, graphs = compiled(model_of())
    train(model, [2, 3, 9, 9, 9, 9, 4, 9])
    assert graphs.made == ["2", "any", "9"] and graphs.run[-4:] == ["9", "9", "any", "9"]


def test_a_shape_that_began_among_others_gets_its_own_graph():
    model, graphs = compiled(model_of())
    train(model, [20, 32, 32, 32, 20, 20, 20, 20])
    assert graphs.made == ["20", "any", "32", "20"] and graphs.run[-1] == "20"


def test_no_more_shapes_than_the_limit_get_their_own():
    (model, graphs), sizes = compiled(model_of(), static_shapes=2), [10, 10, 11, 11, 12, 12, 13]
    train(model, sizes + sizes)
    assert graphs.made == ["10", "11", "12", "any"]
    assert graphs.run[-7:] == ["10", "10", "11", "11", *["any"] * 3]


@pytest.mark.parametrize("static_shapes", [0, LIMIT])
def test_dimensions_that_the_caller_marks_stay_dynamic(static_shapes):
    model, graphs = compiled(model_of(), static_shapes=static_shapes)
    for size in (8, 8, 8, 9, 9, 9):
        x = torch.ones(size, 5)
        torch._dynamo.mark_dynamic(x, 0)
        model(x)
    assert graphs.made == ["any"]


def test_a_second_model_whose_inputs_differ_from_the_firsts_gets_static_graphs():
    for width in (5, 7, 9):
        model, graphs = compiled(model_of(width))
        for _ in range(3):
            model(torch.ones(width, width))
        assert graphs.made == [str(width)]
    model, graphs = compiled(model_of(12))
    model(torch.ones(6, 3, 4))
    assert graphs.made == ["6"]


def test_what_is_not_a_shape_is_guarded_as_always():
    """Autocast, buffers and Python values make further graphs; each gives eager's values."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(5, 4), 1.0
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * self.factor + self.calls

    torch.manual_seed(0)
    plain = Scaled()
    model, _ = compiled(copy.deepcopy(plain))
    for autocast, size in ((False, 8), (False, 8), (True, 8), (True, 4), (False, 4), (True, 8)):
        results = []
        for each in (plain, model):
            each.factor += 0.5
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                results.append(each(torch.ones(size, 5)))
        torch.testing.assert_close(*results)
        assert results[0].dtype is results[1].dtype
    torch.testing.assert_close(plain.calls, model.calls)
