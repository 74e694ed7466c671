"""Upsampling by torch's operator in compiled graphs: torch's own bits, forward and backward."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written_operators import compiled_with

from gallery_lib.compiler.passes.upsampling import rewrite

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


OURS = torch.ops.gallery.upsample.default


def image(
    dtype: torch.dtype = torch.float32, *, channels_last: bool = True, samples: int = 2
) -> Tensor:
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return (
        torch.randn(samples, 3, 11, 7).to(dtype).contiguous(memory_format=layout).requires_grad_()
    )


def both_passes(model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    out = model(x)
    torch.manual_seed(1)
    (gradient,) = torch.autograd.grad(out, x, torch.randn_like(out))
    return out.detach(), gradient


def assert_alike(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one, other)


def check(model: Callable[[Tensor], Tensor], x: Tensor, number: int) -> None:
    compiled, counts = compiled_with(rewrite, OURS, model)
    assert_alike(both_passes(compiled, x), both_passes(model, x))
    assert counts == [number]


@pytest.mark.parametrize("channels_last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("options", ENLARGEMENTS.values(), ids=ENLARGEMENTS.keys())
def test_the_pass_changes_no_bit(options, dtype, channels_last):
    check(Enlarge(options), image(dtype, channels_last=channels_last), 1)


@pytest.mark.parametrize("options", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_what_is_left_as_it_was(options):
    check(Enlarge(options), image(), 0)


@pytest.mark.parametrize("options", ENLARGEMENTS.values(), ids=ENLARGEMENTS.keys())
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
        torch.library.opcheck(OURS, (image(channels_last=channels_last), *asked))


def test_an_upsample_layer_and_a_functions_call_are_both_found():
    layer = nn.UpsamplingBilinear2d(scale_factor=2)

    def both(x: Tensor) -> Tensor:
        larger = layer(x)
        return larger + F.interpolate(x, size=larger.shape[2:], mode="bilinear")

    check(both, image(), 2)


def test_sizes_that_change_share_a_graph():
    model = Enlarge(ENLARGEMENTS["twice"])
    compiled, counts = compiled_with(rewrite, OURS, model)
    for height, width in ((8, 9), (20, 31), (5, 17)):
        x = torch.randn(2, 3, height, width, requires_grad=True)
        assert_alike(both_passes(compiled, x), both_passes(model, x))
    assert counts == [1, 1]  # of the first sizes, and of all others


@pytest.mark.slow
def test_a_graph_from_the_cache_finds_the_operator(tmp_path):
    """Inductor's cache holds graphs after the pass.

    Another process reads them without doing the pass.
    """
    script = """
import torch
from torch._dynamo.utils import counters
from compiler.passes.test_upsampling import ENLARGEMENTS, Enlarge, assert_alike, both_passes, image
from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler

model = Enlarge(ENLARGEMENTS["twice"])
compile_model(model, Compiler(), torch.device("cpu"))
assert_alike(both_passes(model, image()), both_passes(Enlarge(ENLARGEMENTS["twice"]), image()))
print("read from the cache:", sum(count for name, count in counters["aot_autograd"].items() \
if name == "autograd_cache_hit"))
"""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", script]
    said = [
        subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["read from the cache: 0\n", "read from the cache: 1\n"]
