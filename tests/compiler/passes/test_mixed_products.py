"""Products by weights as they lie in fp32: which are rewritten, and that values are autocast's."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from written_operators import CPU, assert_as_exact

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import mixed_products
from gallery_lib.compiler.passes.mixed_products import Limits, limits
from gallery_lib.config import Compiler
from gallery_lib.kernels import mixed_product
from gallery_lib.kernels.runtime import operators
from gallery_lib.system import hardware

needs_bf16_units = pytest.mark.skipif(
    mixed_product.reason_not_available() is not None,
    reason="needs a CPU with AVX512-BF16 and a C++ compiler, for which the pass is made",
)
pytestmark = pytest.mark.usefixtures("small_weights")


@pytest.fixture
def small_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the pass take weights that compile and train in a moment; torch's caches do not know."""
    monkeypatch.setattr(mixed_products, "limits", lambda: Limits(512, 1024, 256))
    torch._dynamo.reset()
    with functorch_config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


class Tied(nn.Module):
    """A weight that is an embedding and the last layer, which a vocabulary of odd size has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(51, 32)
        self.middle = nn.Linear(32, 32, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.relu(self.middle(self.embedding(tokens)))
        return nn.functional.linear(hidden, self.embedding.weight)


class Twice(nn.Module):
    """A weight whose one copy multiplies a batch of few rows, and is read otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.dtype is torch.float64 else self.weight.to(torch.bfloat16)
        return nn.functional.linear(x, weight) + weight.mean()


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 48) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def images(*sizes: int) -> Tensor:
    return torch.randn(*sizes).contiguous(memory_format=torch.channels_last)


MODELS = {
    "layers": (lambda: nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 40)), (8, 32)),
    "batch of sequences": (lambda: nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 7)), (3, 5, 32)),
    "turned": (Turned, (8, 32)),
    "tied": (Tied, (4, 6)),
    "read twice": (Twice, (8, 32)),
    "convolution": (
        lambda: nn.Conv2d(16, 32, 3, padding=1).to(memory_format=torch.channels_last),
        (2, 16, 4, 4),
    ),
}


def trained(model: nn.Module, batch: Tensor, autocast: bool = True) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = model(batch)
    result.float().square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    return [result.detach(), *(parameter.grad for parameter in model.parameters())]  # type: ignore[misc]


def calls(model: nn.Module, batch: Tensor, autocast: bool = True) -> tuple[list[Tensor], int]:
    """Compile; return what a step gives, and how often our operator was called."""
    compile_model(model, Compiler(), CPU)
    before = operators.counts()
    found, called = trained(model, batch, autocast), operators.counts()
    return found, sum(
        count for (name, _), count in (called - before).items() if name == "mixed_product"
    )


def assert_as_near(found: list[Tensor], model: nn.Module, batch: Tensor) -> None:
    """Assert that results are as near to float64's as those of eager autocast, or nearly so."""
    eager = trained(copy.deepcopy(model), batch)
    exact_model = copy.deepcopy(model).double()
    exact = exact_model(batch.double() if batch.is_floating_point() else batch)
    exact.square().mean().backward()
    expected = [exact.detach(), *(parameter.grad for parameter in exact_model.parameters())]
    assert_as_exact(found, eager, expected, factor=1.25, more=2**-12)


@needs_bf16_units
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("layers", 5),  # two forward, two gradients of weights, one of the hidden layer
        ("batch of sequences", 5),
        ("turned", 2),
        ("tied", 6),  # a weight that gets both gradients
        ("read twice", 0),  # it is copied anyway, and its gradients are added up in bfloat16
        ("convolution", 1),  # a gradient of few positions is a product
    ],
)
def test_values_are_autocasts_and_gradients_lie_as_their_weights(name, number):
    torch.manual_seed(0)
    build, sizes = MODELS[name]
    batch = images(*sizes) if len(sizes) == 4 else torch.randn(sizes)
    if name == "tied":
        batch = torch.randint(51, sizes)
    model = build()
    compiled = copy.deepcopy(model)
    found, count = calls(compiled, batch)
    assert_as_near(found, model, batch)
    assert count == number
    for weight, gradient in zip(model.parameters(), found[1:], strict=True):
        assert gradient.stride() == weight.stride()
    with torch.no_grad():  # as an optimizer does; the next step sees it
        for weight in (*model.parameters(), *compiled.parameters()):
            weight.mul_(1.5)
    compiled.zero_grad()
    assert_as_near(trained(compiled, batch), model, batch)


@needs_bf16_units
def test_many_rows_small_weights_and_fp32_stay_as_they_are(monkeypatch):
    model = nn.Linear(32, 48)
    for within, autocast, number in (
        (Limits(7, 7, 1), True, 0),
        (Limits(8, 8, 1), True, 2),
        (Limits(8, 8, 32 * 48 + 1), True, 0),
        (Limits(8, 8, 1), False, 0),
    ):
        torch._dynamo.reset()
        monkeypatch.setattr(mixed_products, "limits", lambda within=within: within)
        count = calls(copy.deepcopy(model), torch.randn(8, 32), autocast)[1]
        assert count == number, within


@needs_bf16_units
def test_a_weight_that_changes_before_the_backward_pass_is_refused():
    """As in fp32: the backward pass reads the weight itself, and torch knows that it changed."""
    model = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 40))
    compile_model(model, Compiler(), CPU)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(8, 32)).float().square().mean()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("flags", "rows"),
    [({"avx512_bf16"}, (512, 1024)), ({"avx512_bf16", "amx_bf16"}, (32, 64))],
    ids=["AVX512-BF16", "AMX"],
)
def test_rows_are_those_for_which_it_gains(flags, rows, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
    assert limits() == Limits(*rows)
