"""Passes that put our operators in torch's place: batch norm with ReLU, max pooling, upsampling.

Tables say what each takes and what it leaves; values, gradients and buffers stay torch's, those of
pooling and upsampling to the bit.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written_operators import compiled_with

from gallery_lib.compiler.passes import large_batch_norms, max_pooling, upsampling

OPERATORS = torch.ops.gallery
OURS = OPERATORS.upsample.default
EXACT = {"rtol": 0, "atol": 0}
PASSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "batch norm": (
        *(large_batch_norms.rewrite, OPERATORS.batch_norm_relu.default),
        {"atol": 2e-3, "rtol": 2**-7},
    ),
    "max pooling": (max_pooling.rewrite, OPERATORS.max_pool.default, EXACT),
    "upsampling": (upsampling.rewrite, OURS, {**EXACT, "check_stride": True}),
}
"""The pass, its operator, and how near values are."""


def image(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(sizes).add(0.3).to(dtype, memory_format=torch.channels_last)


def results(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Return what the function gives, and its gradient where `x` wants one."""
    x = x.detach().clone().requires_grad_(x.requires_grad)
    out = function(x)
    if not x.requires_grad:
        return [out]
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, x, torch.randn_like(out))]


def check(which: str, function: Any, x: Tensor, number: int) -> None:
    """Assert that the pass writes so many operators, and that three steps are torch's."""
    plain, (rewrite, operator, close) = copy.deepcopy(function), PASSES[which]
    compiled, counts = compiled_with(rewrite, operator, function)
    for _ in range(3):
        torch.testing.assert_close(results(compiled, x), results(plain, x), **close)
    if isinstance(function, nn.Module):
        torch.testing.assert_close(function.state_dict(), plain.state_dict())
    assert counts == [number]


# --------------------------------------------------------------------------------------------------
# Batch norm and max pooling


class Called(nn.Module):
    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__()
        self.function, self.norm = function, nn.BatchNorm2d(8, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.norm)


def by_name(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    result = F.batch_norm(
        x,
        running_mean=norm.running_mean,
        running_var=norm.running_var,
        eps=1e-3,
        momentum=0.3,
        training=True,
    )
    return torch.relu(result)


X = image(4, 8, 6, 6)
BATCH_NORMS = [
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), X, 1),
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=True)), X, 1),
    (
        nn.Sequential(nn.BatchNorm2d(8, eps=1e-3, momentum=0.3, affine=False), nn.ReLU()),
        X,
        1,
    ),
    (nn.Sequential(nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()), X, 1),
    (Called(by_name), X, 1),
    (Called(lambda x, norm: F.relu_(norm(x)) + x), X, 1),
    (Called(lambda x, norm: norm(x).relu().square()), X, 1),
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), X.contiguous(), 0),
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), X.float(), 0),
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).bfloat16(), X, 0),
    (nn.Sequential(nn.BatchNorm2d(8), nn.GELU()), X, 0),
    (nn.Sequential(nn.BatchNorm2d(8)), X, 0),
    (nn.Sequential(nn.BatchNorm1d(8), nn.ReLU()), torch.randn(4, 8), 0),
    (nn.Sequential(nn.BatchNorm3d(8), nn.ReLU()), torch.randn(2, 8, 3, 4, 4), 0),
    (Called(lambda x, norm: torch.relu(norm(x) + x)), X, 0),
    (Called(lambda x, norm: (y := norm(x), y.add_(x), torch.relu(y))[2]), X, 0),
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).eval(), X, 0),
    (Called(lambda x, norm: (y := norm(x), y.relu() + y)[1]), X, 0),
    (Called(lambda x, norm: (y := norm(x), torch.relu(y) * y)[1]), X, 0),
]
IMAGE = image(2, 8, 12, 12).float()
POOLS = [
    (nn.MaxPool2d(3, 2, 1), IMAGE, 1),
    (nn.MaxPool2d(2), IMAGE, 1),
    (nn.MaxPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), IMAGE, 1),
    (lambda x: F.max_pool2d(x, 2), IMAGE, 1),
    (lambda x: F.max_pool2d(x, kernel_size=(2,), stride=[2], padding=0), IMAGE, 1),
    (lambda x: torch.max_pool2d(x, [2, 3], padding=[1]), IMAGE, 1),
    (nn.MaxPool2d(2), IMAGE.contiguous(), 0),  # contiguous
    (nn.MaxPool2d(2), IMAGE[0].contiguous(), 0),  # one image
    (nn.MaxPool2d(2), IMAGE.double(), 0),
    (nn.MaxPool2d(2, dilation=2), IMAGE, 0),
    (nn.MaxPool2d(17), image(2, 8, 20, 20).float(), 0),
    (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], IMAGE, 0),
    (nn.AdaptiveMaxPool2d(3), IMAGE, 0),
]


@pytest.mark.parametrize(
    ("which", "function", "x", "number"),
    [
        *(("batch norm", *case) for case in BATCH_NORMS),
        *(("max pooling", *case) for case in POOLS),
    ],
)
def test_what_a_pass_takes_and_what_it_leaves(which, function, x, number, monkeypatch):
    monkeypatch.setattr(large_batch_norms, "SMALLEST_BYTES", 0)
    check(which, function, x, number)


@pytest.mark.parametrize(("pixels", "taken"), [(63, 0), (64, 1)])
def test_the_image_of_a_batch_norm_must_be_large(pixels, taken):
    model = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU())
    check("batch norm", model, image(2, 64, pixels, pixels), taken)


# --------------------------------------------------------------------------------------------------
# Upsampling


ENLARGEMENTS: dict[str, dict[str, Any]] = {
    "twice": {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True},
    "by factors": {"scale_factor": (1.7, 2.3), "mode": "bilinear"},
    "to one length": {"size": 21, "mode": "bilinear", "align_corners": False},
    "to a size": {"size": (12, 31), "mode": "bicubic"},
    "bicubic by a factor": {"scale_factor": 1.6, "mode": "bicubic", "align_corners": True},
    "smaller": {"scale_factor": 0.6, "mode": "bilinear"},
}
LEFT_ALONE: dict[str, dict[str, Any]] = {
    "nearest": {"scale_factor": 2, "mode": "nearest"},
    "anti-aliased": {"scale_factor": 0.5, "mode": "bilinear", "antialias": True},
    "factors computed again": {
        "scale_factor": 1.7,
        "mode": "bilinear",
        "recompute_scale_factor": True,
    },
}


class Enlarge(nn.Module):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x * 1.25, **self.options) * 0.5


LARGER = pytest.mark.parametrize("options", ENLARGEMENTS.values(), ids=ENLARGEMENTS.keys())


def small(dtype: torch.dtype = torch.float32, *, channels_last: bool = True) -> Tensor:
    x = image(2, 3, 11, 7, dtype=dtype)
    return (x if channels_last else x.contiguous()).requires_grad_()


@pytest.mark.parametrize("channels_last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@LARGER
def test_upsampling_changes_no_bit(options, dtype, channels_last):
    check("upsampling", Enlarge(options), small(dtype, channels_last=channels_last), 1)


@pytest.mark.parametrize("options", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_other_upsampling_is_left_as_it_was(options):
    check("upsampling", Enlarge(options), small(), 0)


@LARGER
def test_torch_finds_nothing_wrong_with_the_operator(options):
    """Its shapes without values, also symbolic ones; its gradient; that it changes no argument."""
    two = {
        name: list(value) if isinstance(value, tuple) else [value, value]
        for name, value in options.items()
        if name in ("size", "scale_factor")
    }
    scales = [float(each) for each in two["scale_factor"]] if "scale_factor" in two else None
    asked = (options["mode"], two.get("size"), scales, options.get("align_corners", False))
    for channels_last in (True, False):
        torch.library.opcheck(OURS, (small(channels_last=channels_last), *asked))


def test_an_upsample_layer_and_a_functions_call_are_both_found():
    layer = nn.UpsamplingBilinear2d(scale_factor=2)

    def both(x: Tensor) -> Tensor:
        larger = layer(x)
        return larger + F.interpolate(x, size=larger.shape[2:], mode="bilinear")

    check("upsampling", both, small(), 2)


def test_sizes_that_change_share_a_graph():
    model = Enlarge(ENLARGEMENTS["twice"])
    compiled, counts = compiled_with(upsampling.rewrite, OURS, model)
    for sizes in ((8, 9), (20, 31), (5, 17)):
        x = torch.randn(2, 3, *sizes, requires_grad=True)
        torch.testing.assert_close(results(compiled, x), results(model, x), **EXACT)
    assert counts == [1, 1]  # of the first sizes, and of all others
