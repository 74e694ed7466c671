"""Products in bfloat16: by weights as they lie in fp32, and emulated on fp32 units.

Tables and graphs say which are rewritten; values are autocast's, or as exact.
"""

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from written_operators import CPU, Counting, assert_as_exact

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import emulated_bf16, mixed_products
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
        # two forward, two gradients of weights, one of the hidden layer
        pytest.param("layers", 5, marks=pytest.mark.slow),
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


# --------------------------------------------------------------------------------------------------
# Emulated on fp32 units, as convolutions are


def dtypes(graph: fx.Graph) -> list[torch.dtype]:
    words = ("convolution", "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
    found = []
    for node in graph.nodes:
        if node.op == "call_function" and any(word in str(node.target) for word in words):
            value = node.meta["val"]
            values = value if isinstance(value, (tuple, list)) else [value]
            found.append(next(one.dtype for one in values if one is not None))
    return found


@pytest.mark.slow
def test_no_bf16_arithmetic_is_left_and_gradients_are_as_exact_as_the_emulation():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    plain = nn.Sequential(*layers, nn.Linear(16 * 64, 10))
    exact, compiled = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    count = Counting(emulated_bf16.PASS, dtypes)
    step = torch.compile(compiled, options={"post_grad_custom_pre_pass": count})
    inputs, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    F.cross_entropy(exact(inputs.double()), labels).backward()
    for network in (plain, step):
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(network(inputs).float(), labels).backward()
    forward, backward = count.noted
    assert {*forward, *backward} == {torch.float32} and len(forward) == 2 and len(backward) >= 3
    for ours, theirs, true in zip(
        compiled.parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        assert ours.dtype is torch.float32
        error, own = (
            (each.grad.double() - true.grad).norm() / (true.grad.norm() + 1e-4)
            for each in (ours, theirs)
        )
        assert error <= 2 * own + 1e-3


@pytest.mark.slow
def test_factors_of_a_product_are_kept():
    added, left, right = (torch.randn(2, 8, 8, dtype=torch.bfloat16) for _ in range(3))

    def product(added: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return torch.baddbmm(added, left, right, beta=0.5, alpha=0.25)

    count = Counting(emulated_bf16.PASS, dtypes)
    compiled = torch.compile(product, options={"post_grad_custom_pre_pass": count})
    ours = compiled(added, left, right).double()
    true = 0.5 * added.double() + 0.25 * (left.double() @ right.double())
    assert set(count.noted[0]) == {torch.float32}
    torch.testing.assert_close(ours, true, rtol=2**-7, atol=2**-6)
