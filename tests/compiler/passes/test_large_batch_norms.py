"""The graph passes of our batch norm with ReLU: what they rewrite, and that values are torch's."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torchvision.models.resnet import BasicBlock
from written_operators import CPU, assert_as_exact, compiled_with

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import large_batch_norms
from gallery_lib.compiler.passes.large_batch_norms import add_up_gradients, rewrite
from gallery_lib.config import Compiler
from gallery_lib.kernels.runtime import operators

LAST = torch.channels_last


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every image as a large one."""
    monkeypatch.setattr(large_batch_norms, "SMALLEST_BYTES", 0)


def image(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(sizes).add(0.3).to(dtype, memory_format=LAST)


def rewritten(model: nn.Module, x: torch.Tensor, *, every: bool = False) -> int:
    """Return how many of our operators the pass writes, of which results and buffers are torch's.

    The results of three steps are compared, and what they leave in the model.
    """
    plain, ours = copy.deepcopy(model), torch.ops.gallery.batch_norm_relu.default
    compiled, counts = compiled_with(partial(rewrite, every=every), ours, model)
    for _ in range(3):
        torch.testing.assert_close(compiled(x.clone()), plain(x.clone()), atol=2e-3, rtol=2**-7)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    (count,) = counts
    return count


class Called(nn.Module):
    """Model that calls a function with a batch norm's parameters."""

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


def in_place(x: torch.Tensor, norm: nn.BatchNorm2d) -> torch.Tensor:
    result = norm(x)
    result += x
    return functional.relu_(result)


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
        Called(lambda x, norm: functional.relu(norm(x) + x)),
        Called(lambda x, norm: torch.relu(x.sin() + norm(x))),
        Called(lambda x, norm: functional.relu(norm(x).add_(x), inplace=True)),
        Called(in_place),
    ],
)
@pytest.mark.usefixtures("every_size")
def test_batch_norm_with_relu_is_taken(model):
    assert rewritten(model, image(4, 8, 6, 6)) == 1


def changed_before_the_addition(x: torch.Tensor, norm: nn.BatchNorm2d) -> torch.Tensor:
    images = x.sin()
    result = norm(images)
    images.mul_(2)
    return torch.relu(result + x)


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
        (Called(lambda x, norm: torch.relu(norm(x) + 1)), image(4, 8, 6, 6)),
        (Called(lambda x, norm: torch.relu(norm(x) + x.mean(0, True))), image(4, 8, 6, 6)),
        (Called(lambda x, norm: torch.relu(norm(x) + x.float())), image(4, 8, 6, 6)),
        (Called(lambda x, norm: torch.relu(torch.add(norm(x), x, alpha=2))), image(4, 8, 6, 6)),
        (Called(lambda x, norm: torch.relu((y := norm(x)) + y)), image(4, 8, 6, 6)),
        (
            Called(lambda x, norm: (y := x.sin(), torch.relu(y.add_(norm(x))) + y)[1]),
            image(4, 8, 6, 6),
        ),
        (Called(lambda x, norm: (y := norm(x), y.add_(x), torch.relu(y))[2]), image(4, 8, 6, 6)),
        (Called(changed_before_the_addition), image(4, 8, 6, 6)),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_when_all_are_asked_for_small_images_and_fp32_are_taken(dtype):
    x, taken = image(4, 8, 6, 6, dtype=dtype), int(dtype is not torch.float16)  # on the CPU
    assert rewritten(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), x, every=True) == taken
    assert rewritten(Called(in_place), x, every=True) == taken


@pytest.mark.parametrize(
    ("channels_last", "there", "said"),
    [
        (True, True, "own batch norms of every size"),
        (True, False, "own batch norms of every size not used: their C++ could not be built here"),
        (False, True, "own batch norms of every size not used: the model is not in channels_last"),
    ],
)
def test_a_run_says_whether_it_has_all_that_it_asked_for(channels_last, there, said, monkeypatch):
    monkeypatch.setattr(large_batch_norms.batch_norm_statistics, "available", lambda: there)
    model, options = nn.Sequential(nn.BatchNorm2d(8)), Compiler(all_batch_norms=True)
    done = compile_model(model, options, CPU, channels_last=channels_last)
    assert done.endswith(f", {said}")


def step(
    model: nn.Module, options: Compiler, x: torch.Tensor, amp: bool = True, double: bool = False
) -> Any:
    """Return the result, all gradients and the buffers of a compiled step, perhaps under autocast.

    With `double` it is a step in float64.
    """
    model = copy.deepcopy(model).to(torch.float64 if double else torch.float32)
    compile_model(model, options, CPU, channels_last=True)
    x = x.to(torch.float64 if double else torch.float32, copy=True).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=amp and not double):
        result = model(x)
    result.float().square().sum().backward()
    gradients = [x.grad, *(weight.grad for weight in model.parameters())]
    return [result, *gradients, *(buffer for buffer in model.buffers() if buffer.dim())]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        Compiler(),
        Compiler(keep_activations=0.3),
        pytest.param(Compiler(all_batch_norms=True), marks=pytest.mark.thorough),
    ],
    ids=["bf16", "recomputed", "all in fp32"],
)
def test_a_compiled_step_has_torchs_gradients(options, monkeypatch):
    amp = not options.all_batch_norms
    if amp and (reason := large_batch_norms.reason_not_applied()):
        pytest.skip(f"{reason}; a machine with AVX-512 runs this test")
    if amp:
        monkeypatch.setattr(large_batch_norms, "SMALLEST_BYTES", 0)
    torch._dynamo.reset()  # else sizes may count as dynamic, after other tests
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 40, 3, bias=False), nn.BatchNorm2d(40), nn.ReLU(), nn.MaxPool2d(2))
    blocks = (BasicBlock(40, 40), BasicBlock(40, 40))
    more = (nn.Conv2d(40, 24, 3), nn.BatchNorm2d(24, momentum=0.3), nn.ReLU(inplace=True))
    model = nn.Sequential(*layers, *blocks, *more, nn.Conv2d(24, 4, 1)).to(memory_format=LAST)
    x = image(4, 3, 19, 19, dtype=torch.float32)
    before = operators.counts()
    ours = step(model, options, x, amp)
    calls = operators.counts() - before
    # The first block's result has two readers, and so two gradients.
    counted = {"relu_sums": 5, "relu_sums_of_two": 1, "relu_gradient": 6}
    for name, times in counted.items():
        assert calls[f"batch_norm_{name}", operators.KERNEL] == times
    passes = [calls[f"batch_norm_{name}", operators.KERNEL] for name in ("statistics_", "relu")]
    kept = options.keep_activations
    assert passes == [6, 6] if kept == 1.0 else max(passes) > 6  # what is not kept comes again
    plain = step(model, Compiler(large_batch_norms=False), x, amp)
    exact = step(model, Compiler(large_batch_norms=False), x, double=True)
    assert_as_exact(ours, plain, exact, factor=1.5, more=1e-6)


def gradients() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [*(image(2, 20, 5, 6) + shift for shift in range(4)), *torch.rand(4, 20).unbind()]


OURS = torch.ops.gallery.batch_norm_relu_sums


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda one, other, x, result, *c: OURS(one + other, x, result, *c), 1),
        (
            lambda a, b, x, result, *c: (
                ((total := a + b), OURS(total, x, result, *c))[1] + (total,)
            ),
            0,
        ),
        (lambda one, other, x, result, *c: OURS(one + other, x, None, *c), 0),
        (lambda one, other, x, result, *c: OURS(one + other[:, :, :1, :1], x, result, *c), 0),
        (lambda one, other, x, result, *c: OURS(one + 1, x, result, *c), 0),
        (lambda a, b, x, result, *c: OURS(torch.add(a, b, alpha=2), x, result, *c), 0),
    ],
    ids=["taken", "another reader", "no residual", "another shape", "a number", "a factor"],
)
def test_the_sum_of_two_gradients_goes_into_the_operator_and_no_bit_changes(function, times):
    module = make_fx(function, tracing_mode="fake")(*gradients())
    add_up_gradients(module.graph)
    module.graph.lint()
    module.recompile()
    of_two = torch.ops.gallery.batch_norm_relu_sums_of_two.default
    assert len(module.graph.find_nodes(op="call_function", target=of_two)) == times
    for ours, plain in zip(module(*gradients()), function(*gradients()), strict=True):
        assert torch.equal(ours, plain)
