"""A model compiled in place: by which graphs, and what is said of one that is compiled again.

Modules with torch's own `forward` are compiled, too; a backward pass may keep its graph.
"""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from gallery_lib import accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.compiler import recompiles
from gallery_lib.compiler.backend import announce_first_call, compile_calls, compile_model
from gallery_lib.config import Compiler, Config

LIMIT = 8
"""Compilations of a function at which Dynamo stops, unless a test before has raised it."""


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(recompiles, "_watch", None)
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield
    torch._dynamo.reset()


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
    torch.manual_seed(0)
    module, x, counted = build(), torch.randn(3, 4), Counted()
    expected = module(x)
    compile_calls(module, backend=counted)
    torch.testing.assert_close(module(x), expected)
    module(x)
    assert (counted.graphs, counted.calls) == (1, 2)


class Refused(Own):
    @torch.compiler.disable
    def refused(self, x):
        return super().forward(x)

    def forward(self, x):
        return self.refused(x)


def test_a_model_of_which_no_graph_was_made_is_named(capsys):
    model, done = Refused(), {"compiler": "inductor"}
    compile_calls(model, backend=Counted())
    announce_first_call(model, done)
    model(torch.randn(3, 4))
    assert done["compiler"] == "none: the compiler made no graph of Refused"
    assert "Refused runs as it is" in capsys.readouterr().err


@pytest.mark.parametrize("ours", [True, False], ids=["of ours", "of the user's"])
def test_every_model_of_a_process_is_compiled_however_many_there_were(ours, capsys):
    models = [nn.Sequential(nn.Linear(4, width), nn.ReLU()) for width in range(1, 2 * LIMIT)]
    if not ours:
        for other in models[:-1]:
            torch.compile(other, backend="eager")(torch.randn(3, 4))
    for model in models if ours else models[-1:]:
        counted, done = Counted(), {"compiler": "inductor"}
        compile_calls(model, backend=counted)
        announce_first_call(model, done)
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), model.forward(x))
        assert (counted.graphs, counted.calls) == (1, 1)
        assert done["compiler"] == "inductor"
    assert "runs as it is" not in capsys.readouterr().err


def test_lazy_parameters_get_the_values_and_leave_the_generator_as_in_eager_mode():
    found = []
    for compiled in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
        if compiled:
            compile_model(model, Compiler(backend="eager"), torch.device("cpu"))
        outputs = [model(torch.ones(2, 5)) for _ in range(2)]
        found.append([*model.state_dict().values(), *outputs, torch.get_rng_state()])
    assert all(map(torch.equal, *found))


def test_a_copy_of_a_compiled_model_is_not_compiled():
    model, counted = Own(), Counted()
    compile_calls(model, backend=counted)
    model(torch.randn(3, 4))
    copy.deepcopy(model)(torch.randn(3, 4))
    assert (counted.graphs, counted.calls) == (1, 1)


@pytest.mark.parametrize(
    "build", [Own, lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))]
)
def test_a_layer_that_is_frozen_and_unfrozen_is_compiled_twice_and_has_eagers_gradients(build):
    torch.manual_seed(0)
    plain = build()
    ours = copy.deepcopy(plain)
    compile_model(ours, Compiler(backend="aot_eager"), torch.device("cpu"))
    counted = torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    for trained in (False, True, False, True, False, True):
        for _ in range(2):
            x, gradients = torch.randn(3, 4), []
            for model in (plain, ours):
                next(model.children()).requires_grad_(trained)
                model.zero_grad()
                model(x).square().mean().backward()
                gradients.append([p.grad for p in model.parameters()])
            torch.testing.assert_close(*gradients)
    assert counted["unique_graphs"] == before + 2


# --------------------------------------------------------------------------------------------------
# Backward passes with `retain_graph=True`, whatever came before them


def plain_step(model: nn.Module, x: Tensor) -> None:
    model(x).square().sum().backward()


def step_of_two_backward_passes(model: nn.Module, x: Tensor) -> None:
    result = model(x)
    result.square().sum().backward(retain_graph=True)
    result.sin().sum().backward()


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    model = copy.deepcopy(model)
    compile_model(model, Compiler(), torch.device("cpu"))
    return model


def model_of(channels: int) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(channels, 8, 3)).to(memory_format=torch.channels_last)


def images() -> Tensor:
    return torch.randn(4, 3, 9, 9).to(memory_format=torch.channels_last)


def check(ours: nn.Module, plain: nn.Module) -> None:
    """Take steps of two backward passes, and hold their gradients against float64."""
    x, exact = images(), copy.deepcopy(plain).double()
    step_of_two_backward_passes(exact, x.double())
    plain_step(ours, x)
    for _ in range(2):
        ours.zero_grad()
        step_of_two_backward_passes(ours, x)
        found = [parameter.grad for parameter in ours.parameters()]
        expected = [parameter.grad.float() for parameter in exact.parameters()]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("first", [plain_step, step_of_two_backward_passes])
def test_a_graph_is_kept_whatever_the_first_step_did(first):
    model = model_of(channels=8 if first is plain_step else 10)
    for _ in range(2):  # the second time compiled code comes from the cache
        ours = compiled(model)
        first(ours, images())
        graphs = counters["inductor"]["fxgraph_cache_miss"], counters["stats"]["unique_graphs"]
        check(ours, model)
        assert graphs == (
            counters["inductor"]["fxgraph_cache_miss"],
            counters["stats"]["unique_graphs"],
        )


class First(nn.Module):
    """Keeps rows that lie apart for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))[:, 0])


@pytest.mark.slow
def test_what_is_kept_of_a_graph_lies_as_it_did():
    model, x = First(), torch.randn(5, 7, 6)
    ours = compiled(model)
    for each in (ours, model):
        step_of_two_backward_passes(each, x)
    found, expected = ([p.grad for p in each.parameters()] for each in (ours, model))
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_other_backward_passes_write_over_what_was_saved():
    model = compiled(model_of(channels=12))
    result = model(images())
    nodes, functions = [result.grad_fn], []
    while nodes:
        node = nodes.pop()
        functions.append(getattr(type(node), "_forward_cls", None))
        nodes += [before for before, _ in node.next_functions if before]
    donated = [one.metadata.bw_donated_idxs for one in functions if hasattr(one, "metadata")]
    assert len(donated) == 1 and donated[0]


# --------------------------------------------------------------------------------------------------
# Compiled code that is compiled again


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.word = ""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * len(self.word + "a")


def _accelerated() -> Model:
    config = Config()
    config.compiler.backend = "aot_eager"  # what is generated is not the point
    model: Model = accelerate(Model(), config)
    return model


@pytest.mark.slow
def test_an_lstm_runs_by_the_operators_of_eager_mode_and_is_not_unrolled():
    model, x, called = nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 16, 2)), torch.randn(5, 3, 8), []
    compiled = copy.deepcopy(model)
    compile_model(compiled, Compiler(), torch.device("cpu"))
    for one in (model, compiled):
        one(x)[0].sum().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            one(x)[0].sum().backward()
        events = profile.key_averages()
        called.append({e.key: e.count for e in events if "lstm" in e.key or "rnn" in e.key.lower()})
    assert called[0] == called[1] and called[0]["aten::lstm"] == 1


@pytest.mark.slow
def test_shapes_that_change_are_named_once_with_the_guard_and_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = _accelerated()
    for size in range(3, 9):  # the second shape compiles for all
        model(torch.ones(size, 4)).sum().backward()
    assert "compiled again" not in capsys.readouterr().err
    assert "recompilations" not in techniques(model)
    for width in (True, False, True):
        model.linear.weight.requires_grad_(width)
        model(torch.ones(3, 4)).sum().backward()
    said = capsys.readouterr().err
    assert said.count("compiled again") == 1
    assert "requires_grad" in said and "toggle requires_grad around whole passes" in said
    assert techniques(model)["recompilations"].startswith("compiled again 2 times (")


@pytest.mark.slow
def test_torchs_limit_is_said_with_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = _accelerated()
    for length in range(12):
        model.word = "a" * length
        model(torch.ones(3, 4)).sum().backward()
    said = capsys.readouterr().err
    assert said.count("Model: torch's limit of graphs is reached, and new inputs run eagerly") == 1
    assert "test_in_place.py:" in techniques(model)["recompilations"]
    assert "a Python value that changes" in techniques(model)["recompilations"]
