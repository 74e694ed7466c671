"""Attention over short sequences as plain products: the same values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph
from torch.nn.attention import SDPBackend, sdpa_kernel
from written_operators import Counting, assert_as_exact, both_passes, rewritten

from gallery_lib.compiler.passes import short_attention
from gallery_lib.compiler.passes.short_attention import LONGEST, PASS, multiplies_in_bf16, rewrite
from gallery_lib.system import hardware

needs_bf16_units = pytest.mark.skipif(
    not multiplies_in_bf16(),
    reason="needs a CPU with AVX512-BF16 and without AMX, and a C++ compiler",
)


def attention(**options: bool | float):
    """Return both passes of attention, which take a mask behind the gradient of the output."""

    def attended(query, key, value, mask=None, **options):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)

    return both_passes(attended, 3, **options)


def inputs(queries: int, keys: int, dtype, *, samples=3, heads=4, width=16) -> list[Tensor]:
    """Return queries, keys, values and a gradient, token by token as projections leave them."""
    torch.manual_seed(0)
    return [
        torch.randn(samples, tokens, heads, width).to(dtype).transpose(1, 2)
        for tokens in (queries, keys, keys, queries)
    ]


def fused(graph: Graph) -> int:
    """Return the calls of torch's fused operator that are left, both ways."""
    name = "scaled_dot_product_flash_attention_for_cpu"
    return sum(name in str(node.target) for node in graph.nodes)


def left(given: list[Tensor]) -> int:
    return fused(rewritten(rewrite, attention(), given).graph)


MASKS = (
    "none",
    "of keys",
    "of queries and keys",
    "one query attends to nothing",
    "added to scores",
)


def mask(kind: str, queries: int, keys: int) -> list[Tensor]:
    torch.manual_seed(1)
    may = torch.rand(3, 1, queries, keys) > 0.3
    may[..., 0] = True
    of_nothing = may.clone()
    of_nothing[1, :, -1] = False
    found = [None, may[:, :, :1], may, of_nothing, torch.randn(queries, keys)][MASKS.index(kind)]
    return [] if found is None else [found]


KINDS = [*((kind, {}) for kind in MASKS), ("none", {"is_causal": True})]


@pytest.mark.parametrize("sizes", [(16, 16), (7, 12), (12, 7), (1, 5)])
@pytest.mark.parametrize(
    ("kind", "options"), [*KINDS, ("none", {"scale": 0.5}), ("none", {"scale": 0.0})]
)
def test_in_fp32_all_is_as_torch_has_it(kind, options, sizes):
    given = [*inputs(*sizes, torch.float32), *mask(kind, *sizes)]
    passes = attention(**options)
    module = rewritten(rewrite, passes, given)
    assert fused(module.graph) == 0
    for ours, theirs in zip(module(*given), passes(*given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours.stride() == theirs.stride()  # what follows in a graph was made for these


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_in_bfloat16_it_rounds_no_more_than_torch_does(kind, options):
    masks = [each if each.dtype is torch.bool else each.bfloat16() for each in mask(kind, 24, 24)]
    given = [*inputs(24, 24, torch.bfloat16, width=64), *masks]
    passes = attention(**options)
    with sdpa_kernel(SDPBackend.MATH):
        exact = passes(*(each if each.dtype is torch.bool else each.double() for each in given))
    module = rewritten(rewrite, passes, given)
    assert fused(module.graph) == 0
    assert_as_exact(module(*given), passes(*given), exact, factor=1.3, more=2e-4)


def test_without_a_backward_pass():
    given = inputs(8, 9, torch.float32)

    def forward(query, key, value, _):
        return (F.scaled_dot_product_attention(query, key, value),)

    module = rewritten(rewrite, forward, given)
    assert fused(module.graph) == 0
    torch.testing.assert_close(module(*given), forward(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", LONGEST)
def test_long_sequences_are_left_to_torch(dtype, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: {"avx512_bf16", "amx_bf16"})
    tokens = LONGEST[dtype]
    assert left(inputs(tokens, tokens, dtype, samples=1, heads=1)) == 0
    assert left(inputs(tokens, tokens + 1, dtype, samples=1, heads=1)) == 2


@needs_bf16_units
def test_longer_sequences_are_taken_where_little_is_kept(monkeypatch):
    tokens = 2 * LONGEST[torch.bfloat16]
    one = inputs(tokens, tokens, torch.bfloat16, samples=1, heads=1)
    assert left(one) == 0
    assert left(inputs(tokens, tokens + 1, torch.bfloat16, samples=1, heads=1)) == 2
    monkeypatch.setattr(short_attention, "MOST_KEPT", tokens**2 - 1)
    assert left(one) == 2
    assert left([each.float() for each in one]) == 2


@needs_bf16_units
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (70, 90), (512, 300)])
@pytest.mark.parametrize("causal", [False, True])
def test_products_of_bf16_that_are_not_rounded_are_as_exact_as_torchs(queries, keys, causal):
    passes, given = attention(is_causal=causal), inputs(queries, keys, torch.bfloat16)
    module = rewritten(rewrite, passes, given)
    exact_products = torch.ops.gallery.exact_products.default
    assert len(module.graph.find_nodes(op="call_function", target=exact_products)) == 2
    exact = passes(*(each.double() for each in given))
    assert_as_exact(module(*given), passes(*given), exact, factor=1.25, more=0)


def test_other_types_and_what_torch_alone_knows_are_left_to_it():
    assert left(inputs(8, 8, torch.float64)) == 2

    def with_logarithms(query, key, value, _):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)

    given = inputs(8, 8, torch.float32)
    assert fused(rewritten(rewrite, with_logarithms, given).graph) == 1


@pytest.mark.slow
def test_sizes_that_change_share_a_graph():
    count, passes = Counting(PASS, fused), attention()
    torch._dynamo.reset()
    compiled = torch.compile(
        F.scaled_dot_product_attention, options={"joint_custom_pre_pass": count}
    )
    for queries, keys, samples in ((8, 9, 3), (20, 31, 2), (40, 17, 5), (6, 50, 4)):
        given = inputs(queries, keys, torch.float32, samples=samples)
        found = both_passes(compiled, 3)(*given)
        torch.testing.assert_close(found, passes(*given), rtol=1e-4, atol=1e-5)
    assert count.noted == [0, 0]  # of the first sizes, and of all others
