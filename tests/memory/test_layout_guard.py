"""channels_last never changes what a model computes; code that needs other strides gets them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques


class Flattened(nn.Module):
    """Model whose `.view` fails in channels_last.

    Before it, the model counts its calls, draws random numbers and has a batch norm.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.Linear(8 * 8 * 8, 5),
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return [samples, 3, 8, 8] → [samples, 5]."""
        x = self.dropout(self.norm(self.conv(x)))
        return self.head(x.view(x.size(0), -1))


class OnlyInEvaluation(Flattened):
    """Model that takes the road that fails in evaluation only."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the same as Flattened."""
        x = self.dropout(self.norm(self.conv(x)))
        return self.head(x.flatten(1) if self.training else x.view(x.size(0), -1))


class OddStrides(nn.Module):
    """Model that reads memory by strides of its own, which raises nothing in any layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [samples, 3, 8, 8] → [samples, 16]."""
        x = self.conv(x)
        return _first_values(x)


def _first_values(x: Tensor) -> Tensor:
    return x.as_strided((x.size(0), 16), (x.numel() // x.size(0), 1))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return twice `x`."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Flatten the gradient on the way, as older code does it."""
        return (gradient.view(-1) * 2).view(gradient.shape)


class WithFunction(nn.Module):
    """Model with a gradient function of its own that flattens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return [samples, 3, 8, 8] → [samples, 4, 6, 6]."""
        return self.last(_Doubled.apply(self.conv(x)))


class Shared(nn.Module):
    """Model with a buffer that is the weight's memory, in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("rows", self.conv.weight.detach().view(4, -1))

    def forward(self, x: Tensor) -> Tensor:
        """Follow the weight only where the memory is one."""
        return self.conv(x) * self.rows.sum()


class Maps(nn.Module):
    """Model that returns feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Return two maps [samples, 4, 8, 8], nested."""
        return {"maps": [self.conv(x)], "more": (self.conv(x).relu(), "text")}


def channels_last(compiled: bool) -> Config:
    """Return a config in channels_last, with all of the backend or all but the compiler."""
    config = Config()
    config.memory.layout = "channels_last"
    config.compiler.enabled = compiled
    return config


def assert_trains_alike(
    make: Callable[[], nn.Module], loss: Any, *, compiled: bool, steps: int = 3
) -> nn.Module:
    """Train one model plainly and one through accelerate(), and return the latter.

    Both are evaluated after each step.
    """
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    ours, _ = accelerate(make(), None, channels_last(compiled))
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for step in range(steps):
        outcomes = []
        for network in (plain, ours):
            network.zero_grad()
            torch.manual_seed(step)
            value = loss(network.train()(x))
            value.backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.01 * parameter.grad
                outcomes.append([value.detach(), loss(network.eval()(x)), torch.rand(1)])
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)
    for (name, theirs), (_, mine) in zip(
        plain.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(
            mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    return ours


def without_dropout(model: nn.Module) -> nn.Module:
    """Where masks are drawn depends on the layout and on the compiler.

    How many elements are kept does not.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def mean_square(output: Tensor) -> Tensor:
    """Return the mean square as a loss."""
    return output.square().mean()


@pytest.mark.parametrize(
    "kind",
    [Flattened, lambda: without_dropout(OnlyInEvaluation())],
    ids=["always", "in evaluation"],
)
def test_a_model_that_flattens_by_view_trains_with_one_line_about_it(
    kind: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    model = assert_trains_alike(kind, mean_square, compiled=False)
    assert techniques(model)["layout"].startswith(
        "contiguous: the model does not work in channels_last"
    )
    said = [line for line in capfd.readouterr().err.splitlines() if "stays contiguous" in line]
    assert len(said) == 1 and "config.memory.layout = 'contiguous'" in said[0]
    assert model.conv.weight.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Flattened, OnlyInEvaluation, OddStrides, WithFunction])
def test_so_it_does_compiled(kind: Any) -> None:
    assert_trains_alike(lambda: without_dropout(kind()), mean_square, compiled=True)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OddStrides, "_first_values calls as_strided"),
        (WithFunction, "backward calls view on gradients"),
        (Shared, "share memory"),
    ],
)
def test_what_would_compute_something_else_in_silence_is_left_contiguous(
    kind: Any, reason: str
) -> None:
    model = assert_trains_alike(kind, mean_square, compiled=False)
    assert reason in techniques(model)["layout"]


def test_what_a_model_returns_is_contiguous_so_that_a_loss_may_flatten_it() -> None:
    model = assert_trains_alike(
        Maps,
        lambda out: out["maps"][0].view(4, -1).sum() + out["more"][0].view(-1).square().sum(),
        compiled=False,
    )
    assert techniques(model)["layout"] == "channels_last"
    out = model(torch.randn(4, 3, 8, 8))
    assert out["maps"][0].is_contiguous() and out["more"][1] == "text"


def test_an_error_of_the_model_itself_stays_what_it_is() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).view(7, 7)

    model, _ = accelerate(Wrong(), None, channels_last(compiled=False))
    with pytest.raises(RuntimeError, match="shape '\\[7, 7\\]' is invalid"):
        model(torch.randn(4, 3, 8, 8))


def test_lazy_layers_train(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    ours, _ = accelerate(model, None, channels_last(compiled=False))
    ours(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())
    assert "lazy parameters" in capfd.readouterr().err


def test_lbfgs_has_its_gradients_contiguous() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 1))
    plain = copy.deepcopy(model)
    ours, optimizer = accelerate(
        model, torch.optim.LBFGS(model.parameters(), max_iter=3), channels_last(compiled=False)
    )
    x = torch.randn(2, 3, 8, 8)
    for network, chosen in (
        (plain, torch.optim.LBFGS(plain.parameters(), max_iter=3)),
        (ours, optimizer),
    ):

        def closure(network: Any = network, chosen: Any = chosen) -> Tensor:
            chosen.zero_grad()
            loss = network(x).square().mean()
            loss.backward()
            return loss

        chosen.step(closure)
    torch.testing.assert_close(ours[0].weight, plain[0].weight, rtol=1e-4, atol=1e-5)
    assert "LBFGS" in techniques(ours)["layout"]
