"""Attention over short sequences as plain products: the same values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import short_attention
from gallery_lib.compiler.passes.short_attention import LONGEST, ShortAttention
from gallery_lib.config import Compiler
from gallery_lib.system import hardware

Passes = Callable[..., tuple[Tensor, ...]]
needs_bf16_units = pytest.mark.skipif(
    not ShortAttention().in_bf16,
    reason="needs a CPU with AVX512-BF16 and without AMX, and a C++ compiler",
)


def both_passes(**options: bool | float) -> Passes:
    """Return a function that runs attention's forward and backward pass.

    It takes queries, keys, values, the gradient of the output, and perhaps a mask. It returns the
    output and three gradients.
    """

    def passes(
        query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, *mask: Tensor
    ) -> tuple[Tensor, ...]:
        parts = [each.detach().requires_grad_() for each in (query, key, value)]
        out = F.scaled_dot_product_attention(*parts, attn_mask=mask[0] if mask else None, **options)
        return (out.detach(), *torch.autograd.grad(out, parts, gradient))

    return passes


def inputs(
    queries: int,
    keys: int,
    dtype: torch.dtype,
    *,
    samples: int = 3,
    heads: int = 4,
    width: int = 16,
) -> list[Tensor]:
    """Return queries, keys, values and a gradient.

    They lie token by token, as a model's projections leave them.
    """
    torch.manual_seed(0)
    sizes = queries, keys, keys, queries
    return [
        torch.randn(samples, tokens, heads, width).to(dtype).transpose(1, 2) for tokens in sizes
    ]


def rewritten(passes: Passes, given: list[Tensor]) -> GraphModule:
    """Return `passes` as a graph on which the pass was done.

    As in the compiler, nothing is detached in it.
    """
    graph = make_fx(passes, tracing_mode="fake")(*given)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)
    ShortAttention()(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


def fused(graph: GraphModule | Graph) -> int:
    """Return the calls of torch's fused operator that are left, both ways."""
    nodes = (graph.graph if isinstance(graph, GraphModule) else graph).nodes
    return sum("scaled_dot_product_flash_attention_for_cpu" in str(node.target) for node in nodes)


MASKS = (
    "none",
    "of keys",
    "of queries and keys",
    "one query attends to nothing",
    "added to scores",
)


def mask(kind: str, queries: int, keys: int) -> list[Tensor]:
    """Return a list with a mask, or with none."""
    torch.manual_seed(1)
    may = torch.rand(3, 1, queries, keys) > 0.3
    may[..., 0] = True
    of_nothing = may.clone()
    of_nothing[1, :, -1] = False
    found = [None, may[:, :, :1], may, of_nothing, torch.randn(queries, keys)][MASKS.index(kind)]
    return [] if found is None else [found]


@pytest.mark.parametrize("sizes", [(16, 16), (7, 12), (12, 7), (1, 5)])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in MASKS),
        ("none", {"is_causal": True}),
        ("none", {"scale": 0.5}),
        ("none", {"scale": 0.0}),
    ],
)
def test_in_fp32_all_is_as_torch_has_it(
    kind: str, options: dict[str, bool | float], sizes: tuple[int, int]
) -> None:
    given = [*inputs(*sizes, torch.float32), *mask(kind, *sizes)]
    passes = both_passes(**options)
    graph = rewritten(passes, given)
    assert fused(graph) == 0
    for ours, theirs in zip(graph(*given), passes(*given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours.stride() == theirs.stride()  # what follows in a graph was made for these


@pytest.mark.parametrize(
    ("kind", "options"), [*((kind, {}) for kind in MASKS), ("none", {"is_causal": True})]
)
def test_in_bfloat16_it_rounds_no_more_than_torch_does(
    kind: str, options: dict[str, bool | float]
) -> None:
    sizes = 24, 24
    given = inputs(*sizes, torch.bfloat16, width=64)
    masks = [each if each.dtype is torch.bool else each.bfloat16() for each in mask(kind, *sizes)]
    passes = both_passes(**options)
    with sdpa_kernel(SDPBackend.MATH):
        exact = passes(
            *(each if each.dtype is torch.bool else each.double() for each in [*given, *masks])
        )
    graph = rewritten(passes, [*given, *masks])
    assert fused(graph) == 0
    for ours, theirs, true in zip(
        graph(*given, *masks), passes(*given, *masks), exact, strict=True
    ):
        assert ours.dtype is torch.bfloat16
        error, own = ((each.double() - true).norm() / true.norm() for each in (ours, theirs))
        assert error <= 1.3 * own + 2e-4


def test_without_a_backward_pass() -> None:
    given = inputs(8, 9, torch.float32)
    graph = rewritten(
        lambda query, key, value, _: (F.scaled_dot_product_attention(query, key, value),), given
    )
    assert fused(graph) == 0
    torch.testing.assert_close(
        graph(*given)[0], F.scaled_dot_product_attention(*given[:3]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("dtype", LONGEST)
def test_long_sequences_are_left_to_torch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "cpu_flags", lambda: {"avx512_bf16", "amx_bf16"})
    passes = both_passes()
    tokens = LONGEST[dtype]
    assert fused(rewritten(passes, inputs(tokens, tokens, dtype, samples=1, heads=1))) == 0
    assert fused(rewritten(passes, inputs(tokens, tokens + 1, dtype, samples=1, heads=1))) == 2


@needs_bf16_units
def test_longer_sequences_are_taken_where_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, dtype = both_passes(), torch.bfloat16
    tokens = 2 * LONGEST[dtype]
    one = inputs(tokens, tokens, dtype, samples=1, heads=1)
    assert fused(rewritten(passes, one)) == 0
    assert fused(rewritten(passes, inputs(tokens, tokens + 1, dtype, samples=1, heads=1))) == 2
    monkeypatch.setattr(short_attention, "MOST_KEPT", tokens**2 - 1)
    assert fused(rewritten(passes, one)) == 2
    assert fused(rewritten(passes, [each.float() for each in one])) == 2


@needs_bf16_units
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (70, 90), (512, 300)])
@pytest.mark.parametrize("causal", [False, True])
def test_products_of_bf16_that_are_not_rounded_are_as_exact_as_torchs(
    queries: int, keys: int, causal: bool
) -> None:
    passes = both_passes(is_causal=causal)
    given = inputs(queries, keys, torch.bfloat16)
    graph = rewritten(passes, given)
    exact_products = torch.ops.gallery.exact_products.default
    assert len(graph.graph.find_nodes(op="call_function", target=exact_products)) == 2
    exact = passes(*(each.double() for each in given))
    for ours, torchs, true in zip(graph(*given), passes(*given), exact, strict=True):
        error, usual = ((each.double() - true).norm() / true.norm() for each in (ours, torchs))
        assert error < 0.005 and error <= 1.25 * usual, (float(error), float(usual))


def test_other_types_and_what_torch_alone_knows_are_left_to_it() -> None:
    assert fused(rewritten(both_passes(), inputs(8, 8, torch.float64))) == 2

    def with_logarithms(query: Tensor, key: Tensor, value: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)

    assert fused(rewritten(with_logarithms, inputs(8, 8, torch.float32))) == 1


class SelfAttention(nn.Module):
    """Self-attention layer with four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return attention of [samples, tokens, 32], in the same shape."""
        parts = self.inward(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return self.outward(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


@pytest.mark.slow
def test_a_compiled_model_uses_it_unless_told_otherwise() -> None:
    called, gradients = {}, {}
    for short in (True, False):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model, x = SelfAttention(), torch.randn(2, 10, 32)
        compile_model(model, Compiler(short_attention=short), torch.device("cpu"))
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().square().mean().backward()  # while compiling, every operator is called
            model.zero_grad()
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                model(x).float().square().mean().backward()
        called[short] = sum("flash_attention" in event.key for event in profile.key_averages())
        gradients[short] = [parameter.grad for parameter in model.parameters()]
    assert called[True] == 0 < called[False]
    for ours, theirs in zip(gradients[True], gradients[False], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=2e-4)


class Counting(ShortAttention):
    """Graph pass that counts what it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[int] = []

    def __call__(self, graph: Graph) -> None:
        super().__call__(graph)
        self.left.append(fused(graph))

    def uuid(self) -> None:
        return None  # never taken from the cache, so that the pass runs


@pytest.mark.slow
def test_sizes_that_change_share_a_graph() -> None:
    count = Counting()
    torch._dynamo.reset()
    passes = both_passes()
    compiled = torch.compile(
        F.scaled_dot_product_attention, options={"joint_custom_pre_pass": count}
    )
    for queries, keys, samples in ((8, 9, 3), (20, 31, 2), (40, 17, 5), (6, 50, 4)):
        given = inputs(queries, keys, torch.float32, samples=samples)
        parts = [each.detach().requires_grad_() for each in given[:3]]
        out = compiled(*parts)
        found = out.detach(), *torch.autograd.grad(out, parts, given[3])
        for ours, theirs in zip(found, passes(*given), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert count.left == [0, 0]  # of the first sizes, and of all others
