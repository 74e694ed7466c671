"""Convolutions over few positions as matrix products: values and gradients as exact as torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule
from written_operators import assert_as_exact, both_passes, convolution, operands, rewritten

from gallery_lib import tasks
from gallery_lib.compiler.passes import small_convolutions
from gallery_lib.compiler.passes.graph_pass import Passes
from gallery_lib.compiler.passes.small_convolutions import MOST_POSITIONS, PASS, rewrite
from gallery_lib.system import hardware


def inputs(size, kernel, dtype=torch.bfloat16, **options):
    """Return the inputs of a convolution of 24 channels to 40, images in channels_last."""
    return operands((3, 24, *size), 40, kernel, dtype, **options)


def convolutions(graph: GraphModule) -> list[str]:
    nodes = [node for node in graph.graph.nodes if "convolution" in str(node.target)]
    return [node.target.__name__.split(".")[0] for node in nodes]


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
def test_values_and_gradients_are_as_exact_as_torchs(size, kernel, options, bias, weights):
    passes = convolution(**options)
    given = inputs(size, kernel, bias=bias, weights=weights, **options)
    graph = rewritten(rewrite, passes, given)
    turned = options.get("stride", 1) == 1 and (options.get("padding") != 1 or kernel != (1, 1))
    # The backward convolution is left for the other gradients.
    assert convolutions(graph) == ([] if turned and not bias else ["convolution_backward"])
    found = graph(*given)
    exact = passes(*(each.double() for each in given))
    # Both errors are chance.
    assert_as_exact(found, passes(*given), exact, factor=1.25, more=0)
    if kernel == (3, 3):  # strides of single elements mean nothing
        assert found[2].stride() == given[1].stride()


@pytest.mark.parametrize("which", ["groups", "dilation", "fp32", "other order", "transposed"])
def test_other_convolutions_are_left_alone(which):
    options = {"padding": 1, **({which: 2} if which in ("groups", "dilation") else {})}
    given = inputs((6, 6), (3, 3), torch.float32 if which == "fp32" else torch.bfloat16, **options)
    passes = convolution(**options)
    if which == "other order":
        given[1] = given[1].transpose(2, 3).contiguous().transpose(2, 3)
    if which == "transposed":
        passes = both_passes(F.conv_transpose2d, 2, padding=1)
        given = [given[2], given[1], given[0]]
    left = convolutions(rewritten(rewrite, passes, given))
    assert left == ["convolution", "convolution_backward"]


@pytest.mark.parametrize("pixels", [1, 9])
def test_each_pass_has_a_size_up_to_which_it_is_a_product(pixels):
    kernel, options = ((1, 1), {}) if pixels == 1 else ((3, 3), {"padding": 1})

    def left(positions: int) -> tuple[bool, ...]:
        """Return whether outputs are a convolution's, and which gradients."""
        given = inputs((1, positions), kernel, **options)  # of three samples
        one = [each[:1] if each.shape[0] == 3 else each for each in given]
        graph = rewritten(rewrite, convolution(**options), one)
        backward = graph.graph.find_nodes(
            op="call_function", target=torch.ops.aten.convolution_backward.default
        )
        mask = backward[0].args[-1][:2] if backward else (False, False)
        return ("convolution" in convolutions(graph), *mask)

    for place, name in enumerate(("forward", "inputs", "weights")):
        most = MOST_POSITIONS[name][pixels == 1]
        assert not left(most)[place] and left(most + 1)[place]


@pytest.mark.parametrize(
    ("flags", "applied"),
    [({"avx2"}, False), ({"avx512_bf16", "amx_bf16"}, True), ({"avx512f", "avx512_bf16"}, True)],
    ids=["AVX2", "AMX", "AVX512-BF16"],
)
def test_it_is_for_processors_on_which_it_was_measured(flags, applied, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
    assert (small_convolutions.reason_not_applied() is None) is applied


@pytest.mark.thorough
@pytest.mark.slow
def test_no_gradient_of_a_resnet_50_is_lost():
    """The compiler may not write over activations that a product still reads."""
    lengths = []
    for compiled in (True, False):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = tasks.get("resnet50").build_model().to(memory_format=torch.channels_last)
        images = torch.randn(16, 3, 64, 64).to(memory_format=torch.channels_last)
        if compiled:
            model.compile(options={"joint_custom_pre_pass": Passes([PASS])})
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(model(images).float(), torch.arange(16)).backward()
        lengths.append({name: float(p.grad.norm()) for name, p in model.named_parameters()})
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)
