"""The graph pass of our batch norm with ReLU: what it rewrites, and that values are torch's."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from written_operators import compiled_with

from gallery_lib.compiler.passes import large_batch_norms
from gallery_lib.compiler.passes.large_batch_norms import rewrite

LAST = torch.channels_last


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_batch_norms, "SMALLEST_BYTES", 0)


def image(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(sizes).add(0.3).to(dtype, memory_format=LAST)


def rewritten(model: nn.Module, x: torch.Tensor) -> int:
    """Return how many of our operators the pass writes, of which results and buffers are torch's.

    The results of three steps are compared, and what they leave in the model.
    """
    plain, ours = copy.deepcopy(model), torch.ops.gallery.batch_norm_relu.default
    compiled, counts = compiled_with(rewrite, ours, model)
    for _ in range(3):
        torch.testing.assert_close(compiled(x.clone()), plain(x.clone()), atol=2e-3, rtol=2**-7)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    (count,) = counts
    return count


class Called(nn.Module):
    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__()
        self.function, self.norm = function, nn.BatchNorm2d(8, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.norm)


def by_name(x: torch.Tensor, norm: nn.BatchNorm2d) -> torch.Tensor:
    result = functional.batch_norm(
        x,
        running_mean=norm.running_mean,
        running_var=norm.running_var,
        eps=1e-3,
        momentum=0.3,
        training=True,
    )
    return torch.relu(result)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        nn.Sequential(nn.BatchNorm2d(8, eps=1e-3, momentum=0.3, affine=False), nn.ReLU()),
        nn.Sequential(nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()),
        Called(by_name),
        Called(lambda x, norm: functional.relu_(norm(x)) + x),
        Called(lambda x, norm: norm(x).relu().square()),
    ],
)
@pytest.mark.usefixtures("every_size")
def test_batch_norm_with_relu_is_taken(model):
    assert rewritten(model, image(4, 8, 6, 6)) == 1


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), image(4, 8, 6, 6).contiguous()),
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), image(4, 8, 6, 6, dtype=torch.float32)),
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).bfloat16(), image(4, 8, 6, 6)),
        (nn.Sequential(nn.BatchNorm2d(8), nn.GELU()), image(4, 8, 6, 6)),
        (nn.Sequential(nn.BatchNorm2d(8)), image(4, 8, 6, 6)),
        (nn.Sequential(nn.BatchNorm1d(8), nn.ReLU()), torch.randn(4, 8)),
        (nn.Sequential(nn.BatchNorm3d(8), nn.ReLU()), torch.randn(2, 8, 3, 4, 4)),
        (Called(lambda x, norm: torch.relu(norm(x) + x)), image(4, 8, 6, 6)),
        (Called(lambda x, norm: (y := norm(x), y.add_(x), torch.relu(y))[2]), image(4, 8, 6, 6)),
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).eval(), image(4, 8, 6, 6)),
        (Called(lambda x, norm: (y := norm(x), y.relu() + y)[1]), image(4, 8, 6, 6)),
        (Called(lambda x, norm: (y := norm(x), torch.relu(y) * y)[1]), image(4, 8, 6, 6)),
    ],
)
@pytest.mark.usefixtures("every_size")
def test_others_are_left_to_the_compiler(model, x):
    assert rewritten(model, x) == 0


@pytest.mark.parametrize(("pixels", "taken"), [(63, 0), (64, 1)])
def test_the_image_must_be_large(pixels, taken):
    model = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU())
    assert rewritten(model, image(2, 64, pixels, pixels)) == taken
