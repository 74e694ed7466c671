"""Compilation in place compiles modules with torch's own `forward`, and says where it did not."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gallery_lib.compiler.backend import announce_first_call, compile_calls, compile_model
from gallery_lib.config import Compiler

LIMIT = 8
"""Compilations of a function at which Dynamo stops, unless a test before has raised it."""


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield


class Counted:
    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, graph, examples):
        self.graphs += 1

        def run(*arguments):
            self.calls += 1
            return graph.forward(*arguments)

        return run


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.layer(x).relu())


@pytest.mark.parametrize(
    "build",
    [
        Own,
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU()),
        lambda: nn.Linear(4, 4),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
    ],
    ids=["a class of one's own", "Sequential", "nested", "Linear", "TransformerEncoderLayer"],
)
def test_a_module_is_one_graph_whoever_wrote_its_forward(build):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x, backend = build(), torch.randn(3, 4), Counted()
    expected = module(x)
    compile_calls(module, backend=backend)
    torch.testing.assert_close(module(x), expected)
    module(x)
    assert (backend.graphs, backend.calls) == (1, 2)


class Refused(Own):
    @torch.compiler.disable
    def refused(self, x):
        return super().forward(x)

    def forward(self, x):
        return self.refused(x)


def test_a_model_of_which_no_graph_was_made_is_named(capsys):
    torch._dynamo.reset()
    model, done = Refused(), {"compiler": "inductor"}
    compile_calls(model, backend=Counted())
    announce_first_call(model, done)
    model(torch.randn(3, 4))
    assert done["compiler"] == "none: the compiler made no graph of Refused"
    assert "Refused runs as it is" in capsys.readouterr().err


@pytest.mark.parametrize("ours", [True, False], ids=["of ours", "of the user's"])
def test_every_model_of_a_process_is_compiled_however_many_there_were(ours, capsys):
    torch._dynamo.reset()
    models = [nn.Sequential(nn.Linear(4, width), nn.ReLU()) for width in range(1, 2 * LIMIT)]
    if not ours:
        for other in models[:-1]:
            torch.compile(other, backend="eager")(torch.randn(3, 4))
    for model in models if ours else models[-1:]:
        backend, done = Counted(), {"compiler": "inductor"}
        compile_calls(model, backend=backend)
        announce_first_call(model, done)
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), model.forward(x))
        assert (backend.graphs, backend.calls) == (1, 1)
        assert done["compiler"] == "inductor"
    assert "runs as it is" not in capsys.readouterr().err


def test_a_copy_of_a_compiled_model_is_not_compiled():
    torch._dynamo.reset()
    model, backend = Own(), Counted()
    compile_calls(model, backend=backend)
    model(torch.randn(3, 4))
    copy.deepcopy(model)(torch.randn(3, 4))
    assert (backend.graphs, backend.calls) == (1, 1)


@pytest.mark.parametrize(
    "build", [Own, lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))]
)
def test_a_layer_that_is_frozen_and_unfrozen_has_eagers_gradients(build):
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = build()
    ours = copy.deepcopy(plain)
    compile_model(ours, Compiler(backend="aot_eager"), torch.device("cpu"))
    for trained in (False, True, False, True):
        for _ in range(2):
            x, gradients = torch.randn(3, 4), []
            for model in (plain, ours):
                next(model.children()).requires_grad_(trained)
                model.zero_grad()
                model(x).square().mean().backward()
                gradients.append([p.grad for p in model.parameters()])
            torch.testing.assert_close(*gradients)
