"""Convolutions over few positions as matrix products: values and gradients as exact as torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from gallery_lib import tasks
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import small_convolutions
from gallery_lib.compiler.passes.small_convolutions import MOST_POSITIONS, SmallConvolutions
from gallery_lib.config import Compiler
from gallery_lib.system import hardware

Passes = Callable[..., tuple[Tensor, ...]]
NAMES = ("outputs", "gradient of inputs", "gradient of weights", "gradient of the bias")


def both_passes(**options: object) -> Passes:
    """Return a function that runs a convolution's forward and backward pass.

    It takes image, weight, the gradient of the output, and perhaps a bias. It returns the output
    and the gradients of image, weight and bias.
    """

    def passes(
        image: Tensor, weight: Tensor, gradient: Tensor, *bias: Tensor
    ) -> tuple[Tensor, ...]:
        parts = [each.detach().requires_grad_() for each in (image, weight, *bias)]
        out = F.conv2d(*parts, **options)  # type: ignore[arg-type]
        return (out.detach(), *torch.autograd.grad(out, parts, gradient))

    return passes


def inputs(
    size: tuple[int, int],
    kernel: tuple[int, int],
    dtype: torch.dtype = torch.bfloat16,
    *,
    bias: bool = False,
    weights: torch.memory_format = torch.contiguous_format,
    **options: object,
) -> list[Tensor]:
    """Return the inputs of a convolution of 24 channels to 40, images in channels_last."""
    torch.manual_seed(0)
    groups = int(options.get("groups", 1))  # type: ignore[call-overload]
    image, weight = (
        torch.randn(3, 24, *size),
        torch.randn(40, 24 // groups, *kernel) / (24 * kernel[0] * kernel[1]) ** 0.5,
    )
    gradient = torch.randn_like(F.conv2d(image, weight, **options))  # type: ignore[arg-type]
    layouts = (torch.channels_last, weights, torch.channels_last)
    parts = [
        each.to(dtype).to(memory_format=layout)
        for each, layout in zip((image, weight, gradient), layouts, strict=True)
    ]
    return [*parts, torch.randn(40).to(dtype)] if bias else parts


def rewritten(passes: Passes, given: list[Tensor]) -> GraphModule:
    """Return `passes` as a graph on which the pass was done.

    As in the compiler, nothing is detached in it.
    """
    graph = make_fx(passes, tracing_mode="fake")(*given)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)
    SmallConvolutions()(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


def convolutions(graph: GraphModule) -> list[str]:
    """Return the names of the convolutions that are left."""
    return [
        node.target.__name__.split(".")[0]
        for node in graph.graph.nodes
        if "convolution" in str(node.target)
    ]


def assert_as_exact_as_torch(
    found: tuple[Tensor, ...], passes: Passes, given: list[Tensor]
) -> None:
    """Assert that each result is about as near to float64's as torch's own.

    Its error may be a quarter larger, since both errors are chance.
    """
    exact = passes(*(each.double() for each in given))
    for name, ours, torchs, true in zip(NAMES, found, passes(*given), exact, strict=False):
        assert ours.shape == torchs.shape and ours.dtype is torchs.dtype, name
        error, usual = ((each.double() - true).norm() / true.norm() for each in (ours, torchs))
        assert error < 0.005 and error <= 1.25 * usual, (name, float(error), float(usual))


WEIGHTS = pytest.mark.parametrize(
    "weights",
    [torch.contiguous_format, torch.channels_last],
    ids=["contiguous weights", "weights in channels_last"],
)
SHAPES = [
    ((4, 4), (3, 3), {"padding": 1}),
    ((2, 2), (3, 3), {"padding": 1}),
    ((5, 3), (3, 3), {"padding": 1, "stride": 2}),
    ((6, 5), (3, 2), {}),
    ((5, 5), (5, 1), {"padding": (2, 0)}),
    ((4, 4), (3, 3), {"padding": 2}),
    ((1, 1), (3, 3), {"padding": 1}),
    ((4, 4), (1, 1), {}),
    ((4, 5), (1, 1), {"stride": 2}),
    ((3, 3), (1, 1), {"padding": 1}),
    ((7, 7), (7, 7), {}),
]


@pytest.mark.parametrize(("size", "kernel", "options"), SHAPES, ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@WEIGHTS
def test_values_and_gradients_are_as_exact_as_torchs(
    size: tuple[int, int],
    kernel: tuple[int, int],
    options: dict[str, object],
    bias: bool,
    weights: torch.memory_format,
) -> None:
    passes = both_passes(**options)
    given = inputs(size, kernel, bias=bias, weights=weights, **options)
    graph = rewritten(passes, given)
    turned = options.get("stride", 1) == 1 and (options.get("padding") != 1 or kernel != (1, 1))
    # The backward convolution is left for the other gradients.
    assert convolutions(graph) == ([] if turned and not bias else ["convolution_backward"])
    assert_as_exact_as_torch(graph(*given), passes, given)


@WEIGHTS
def test_weights_gradients_lie_as_the_weights_do(weights: torch.memory_format) -> None:
    passes, given = both_passes(padding=1), inputs((4, 4), (3, 3), weights=weights, padding=1)
    _, _, gradient = rewritten(passes, given)(*given)
    assert gradient.stride() == given[1].stride()


@pytest.mark.parametrize("which", ["groups", "dilation", "fp32", "other order", "transposed"])
def test_other_convolutions_are_left_alone(which: str) -> None:
    options: dict[str, object] = {"padding": 1}
    if which in ("groups", "dilation"):
        options[which] = 2
    given = inputs((6, 6), (3, 3), torch.float32 if which == "fp32" else torch.bfloat16, **options)
    passes = both_passes(**options)
    if which == "other order":
        given[1] = given[1].transpose(2, 3).contiguous().transpose(2, 3)
    if which == "transposed":

        def passes(image: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
            parts = [each.detach().requires_grad_() for each in (gradient, weight)]
            out = F.conv_transpose2d(*parts, padding=1)
            return (out.detach(), *torch.autograd.grad(out, parts, image))

    assert convolutions(rewritten(passes, given)) == ["convolution", "convolution_backward"]


@pytest.mark.parametrize("pixels", [1, 9])
def test_each_pass_has_a_size_up_to_which_it_is_a_product(pixels: int) -> None:
    kernel, options = ((1, 1), {}) if pixels == 1 else ((3, 3), {"padding": 1})

    def left(positions: int) -> tuple[bool, ...]:
        """Return whether outputs are a convolution's, and which gradients."""
        given = inputs((1, positions), kernel, **options)  # of three samples
        image, weight, gradient = (each[:1] if each.shape[0] == 3 else each for each in given)
        graph = rewritten(both_passes(**options), [image, weight, gradient])
        backward = graph.graph.find_nodes(
            op="call_function", target=torch.ops.aten.convolution_backward.default
        )
        mask = backward[0].args[-1][:2] if backward else (False, False)
        return ("convolution" in convolutions(graph), *mask)

    for place, name in enumerate(("forward", "inputs", "weights")):
        most = MOST_POSITIONS[name][pixels == 1]
        assert not left(most)[place] and left(most + 1)[place]


class Deep(nn.Module):
    """A block with a shortcut, as deep in a network.

    It has few positions, and batch norm between the convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(32, 64, 1, stride=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return [samples, 32, height, width] → [samples, 64, height / 2, width / 2]."""
        return F.relu(
            self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))) + self.shortcut(x)
        )


@pytest.mark.slow
@pytest.mark.skipif(
    small_convolutions.reason_not_applied() is not None,
    reason="needs a CPU with AVX512-BF16, for which the pass is made",
)
def test_a_compiled_model_uses_it_unless_told_otherwise() -> None:
    left, gradients = {}, {}
    for small in (True, False):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = Deep().to(memory_format=torch.channels_last)
        x = torch.randn(4, 32, 8, 8).to(memory_format=torch.channels_last)
        compile_model(model, Compiler(small_convolutions=small), torch.device("cpu"))
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().square().mean().backward()  # while compiling, every operator is called
            model.zero_grad()
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                model(x).float().square().mean().backward()
        left[small] = sum(
            event.count
            for event in profile.key_averages()
            if event.key.startswith(("aten::mkldnn_conv", "aten::convolution"))
        )
        gradients[small] = [parameter.grad for parameter in model.parameters()]
    assert left[True] == 1 < left[False]  # for the gradient of the shortcut's bias
    for ours, theirs in zip(gradients[True], gradients[False], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"avx2"}, "no bfloat16 units"),
        ({"avx512_bf16", "amx_bf16"}, None),
        ({"avx512f", "avx512_bf16"}, None),
    ],
    ids=["AVX2", "AMX", "AVX512-BF16"],
)
def test_it_is_for_processors_on_which_it_was_measured(
    flags: set[str], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
    reason = small_convolutions.reason_not_applied()
    assert reason is None if said is None else said in str(reason)


@pytest.mark.thorough
@pytest.mark.slow
def test_no_gradient_of_a_resnet_50_is_lost() -> None:
    """The compiler may write over activations that it is done with.

    It must not write over those that a product still reads.
    """
    lengths = []
    for compiled in (True, False):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = tasks.get("resnet50").build_model().to(memory_format=torch.channels_last)
        images = torch.randn(16, 3, 64, 64).to(memory_format=torch.channels_last)
        if compiled:
            model.compile(options={"joint_custom_pre_pass": SmallConvolutions()})
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(model(images).float(), torch.arange(16)).backward()
        lengths.append(
            {
                name: float(parameter.grad.norm())
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
        )
    assert lengths[0].keys() == lengths[1].keys()
    for name, ours in lengths[0].items():
        assert ours == pytest.approx(lengths[1][name], rel=0.2), name
