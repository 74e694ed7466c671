"""3 × 3 convolutions in Winograd's form: values and gradients as exact as torch's, and where."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written_operators import CPU, assert_as_exact, convolution, operands, rewritten

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import winograd
from gallery_lib.config import Compiler
from gallery_lib.kernels import winograd as kernel
from gallery_lib.kernels.runtime import operators
from gallery_lib.system import hardware

OPERATOR = torch.ops.gallery.winograd.default


def both_ways(**options):
    return convolution(**{"padding": 1, **options})


def inputs(size, out, dtype=torch.float32, kernel=3, **options):
    options = {"padding": 1, **options}
    return operands(size, out, (kernel, kernel), dtype, **options)


def count(graph) -> tuple[int, ...]:
    """Return how many convolutions are in Winograd's form, gradients of weights, and in torch's."""
    names = [str(node.target) for node in graph.graph.nodes]
    ours = ("gallery.winograd.default", "gallery.winograd_gradient.default")
    return (*map(names.count, ours), sum("aten.convolution" in name for name in names))


@pytest.mark.parametrize("size", [(6, 32, 13, 14), (2, 48, 23, 24), (6, 112, 17, 20)], ids=str)
@pytest.mark.parametrize("out", [32, 80, 208])
@pytest.mark.parametrize("weights", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_as_exact_as_torchs(size, out, weights, bias):
    given, passes = inputs(size, out, weights=weights, bias=bias), both_ways()
    graph = rewritten(winograd.rewrite, passes, given)
    assert count(graph) == (2, 1, 0)
    found = graph(*given)
    exact = passes(*(each.double() for each in given))
    assert_as_exact(found, passes(*given), exact, factor=4, more=0)
    assert found[2].stride() == given[1].stride()


def test_contiguous_images_come_back_so():
    given, passes = inputs((6, 32, 13, 14), 48, images=torch.contiguous_format), both_ways()
    graph = rewritten(winograd.rewrite, passes, given)
    assert count(graph) == (2, 1, 0)
    for ours, theirs in zip(graph(*given), passes(*given), strict=True):
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((6, 32, 13, 14), {"stride": 2}),
        ((6, 32, 13, 14), {"padding": 2}),
        ((6, 32, 13, 14), {"padding": 2, "dilation": 2}),
        ((6, 64, 13, 14), {"groups": 2}),
        ((6, 32, 13, 14), {"kernel": 5}),
        ((6, 32, 13, 14), {"dtype": torch.bfloat16}),
        ((6, 32, 13, 14), {"dtype": torch.float64}),
        ((6, 40, 13, 14), {}),
        ((6, 16, 13, 14), {}),
        ((3, 32, 6, 6), {}),
        ((260, 32, 1, 1), {}),
    ],
    ids=str,
)
def test_other_convolutions_are_left_alone(size, options):
    given = inputs(size, 64, **options)
    of_call = {k: v for k, v in options.items() if k not in ("kernel", "dtype")}
    assert count(rewritten(winograd.rewrite, both_ways(**of_call), given)) == (0, 0, 2)


def test_a_frozen_image_s_gradient_is_not_computed():
    def passes(image: Tensor, weight: Tensor, gradient: Tensor):
        weight = weight.detach().requires_grad_()
        return torch.autograd.grad(F.conv2d(image, weight, padding=1), weight, gradient)

    graph = rewritten(winograd.rewrite, passes, inputs((6, 32, 13, 14), 32))
    assert count(graph) == (1, 1, 0)


def test_results_have_the_same_bits_for_any_number_of_threads():
    image, weight, gradient = inputs((3, 64, 41, 42), 96)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            of_weight = torch.ops.gallery.winograd_gradient(gradient, image, weight)
            results.append((OPERATOR(image, weight, False), of_weight))
    finally:
        torch.set_num_threads(before)
    for both in itertools.pairwise(results):
        assert all(map(torch.equal, *both))


def test_infinite_pixels_spoil_their_tiles_alone():
    image, weight, _ = inputs((1, 32, 24, 24), 32)
    image[0, 3, 4, 4] = torch.inf
    ours, theirs = OPERATOR(image, weight, False), F.conv2d(image, weight, padding=1)
    assert not ours[theirs.isinf()].isfinite().any()
    finite = torch.ones(24, 24, dtype=torch.bool)
    finite[2:6, 2:6] = False
    assert torch.allclose(ours[:, :, finite], theirs[:, :, finite], atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "applied"), [({"sse4_2"}, False), ({"avx2"}, True), ({"avx512f"}, True)]
)
def test_it_is_for_processors_on_which_it_was_measured(flags, applied, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
    assert (winograd.reason_not_applied() is None) is (applied and kernel.available())


@pytest.mark.slow
def test_a_compiled_model_in_fp32_calls_it_and_its_gradients_are_as_exact():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, padding=1)
    model = nn.Sequential(*layers, nn.BatchNorm2d(48))
    x, found = torch.randn(4, 3, 24, 24), []
    for form, without in (("ours", ()), ("compiled", ("winograd",)), ("float64", None)):
        torch._dynamo.reset()
        one = copy.deepcopy(model)
        if without is not None:
            compile_model(one, Compiler(without=without), CPU, channels_last=True)
        dtype = torch.float64 if form == "float64" else torch.float32
        before = operators.counts()
        result = one.to(dtype)(x.to(dtype))
        result.pow(3).sum().backward()
        found.append([result.detach(), *(p.grad for p in one.parameters())])
        new = operators.counts() - before
        called = [new[name, operators.KERNEL] for name in ("winograd", "winograd_gradient")]
        applied = form == "ours" and not winograd.reason_not_applied()
        assert called == ([2, 1] if applied else [0, 0])
    # What follows is the gradient of a bias in front of a batch norm, which is 0.
    assert_as_exact(*(found[k][:4] for k in range(3)), factor=2, more=1e-6)
