"""Masks in compiled code, as bytes, and those of dropout by our operator: no bit changes."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional
from written_operators import CPU

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler
from gallery_lib.kernels.dropout_mask import NAME
from gallery_lib.kernels.runtime import operators

pytestmark = pytest.mark.slow  # compiles
BY_BYTES = "uint8_t*>("
EXACT = {"rtol": 0, "atol": 0}


class Masks(nn.Module):
    """Model that reads a mask, makes masks, joins them, and turns them into numbers."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        large = x > 0.3
        return (
            torch.where(mask, x, -x) * 2,
            large,
            large & mask,
            large | (x < 0),
            ~mask,
            mask.to(x.dtype) * 3,
            (x > 0).to(torch.uint8),
            torch.where(large & mask, 1, 2),
        )


class Turned(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return torch.where(mask.t(), x, 0.0).contiguous(), (x > 0).t().contiguous(), x.t() > 0


class Each(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pairs: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        return [self.model(*pair) for pair in pairs]


def check(model: nn.Module, pairs: list[tuple[Tensor, ...]]) -> None:
    torch._dynamo.reset()
    model = Each(model)
    plain = model(pairs)
    compile_model(model, Compiler(), CPU)
    torch.testing.assert_close(model(pairs), plain, **EXACT)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64]
)
def test_values_are_those_of_eager_mode(dtype):
    torch.manual_seed(0)
    sizes = (1, 31, 32, 4109)
    check(Masks(), [((torch.randn(n) * 3).to(dtype), torch.rand(n) > 0.5) for n in sizes])


def test_masks_across_memory_keep_their_values():
    torch.manual_seed(0)
    sizes = ((5, 7), (64, 48), (33, 130))
    check(Turned(), [(torch.randn(n) * 3, torch.rand(n[::-1]) > 0.5) for n in sizes])


def test_sizes_that_change_are_compiled_too():
    """The number of elements at the end is then an expression with commas of its own."""
    torch._dynamo.reset()
    model = Masks()
    compile_model(model, Compiler(), CPU)
    for size in (3, 4, 9):
        x, mask = torch.randn(size, 35).bfloat16(), torch.rand(size, 35) > 0.5
        torch.testing.assert_close(model(x, mask), Masks()(x, mask), **EXACT)


def test_masks_are_loaded_and_stored_as_bytes_where_asked_for_and_only_there():
    x, mask, codes = torch.randn(4096), torch.rand(4096) > 0.5, []
    for options in (Compiler(), Compiler(without=("vector_masks",)), None):
        torch._dynamo.reset()
        model = Masks()
        if options is None:
            model.compile()
        else:
            compile_model(model, options, CPU)
        with torch._inductor.config.patch(force_disable_caches=True):
            codes.append("".join(run_and_get_code(model, x, mask)[1]))
    assert [BY_BYTES in code for code in codes] == [True, False, False]
    assert "::from(in_ptr" not in codes[0]


# --------------------------------------------------------------------------------------------------
# The masks of dropout


class Dropouts(nn.Module):
    """Model with dropout of fp32, of bf16 and inside attention, of nothing and of everything.

    Its last result uses random numbers as they are, and one mask beside them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 24)

    def forward(self, x: Tensor, heads: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            rounded = functional.dropout(self.linear(x), 0.1)
        numbers = torch.rand_like(x)
        return (
            rounded,
            functional.dropout(x, 0.25),
            functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2),
            functional.dropout(x, 0.0),
            functional.dropout(x, 1.0),
            numbers * x + (numbers > 0.5) + torch.randn_like(x),
        )


def trained(model: nn.Module, *, vector: bool, sizes: tuple[int, ...]) -> list[Tensor]:
    model = copy.deepcopy(model)
    compile_model(model, Compiler(without=() if vector else ("vector_dropout",)), CPU)
    kept = []
    for samples in sizes:
        torch.manual_seed(samples)
        x = torch.randn(samples, 7, 16, requires_grad=True)
        heads = torch.randn(samples, 3, 9, 8, requires_grad=True)
        results = model(x, heads)
        torch.stack([result.float().square().mean() for result in results]).sum().backward()
        gradients = [tensor.grad for tensor in (x, heads, model.linear.weight)]
        kept += [tensor.detach().clone() for tensor in (*results, *gradients)]
    return kept


@pytest.mark.parametrize("sizes", [(5,), (5, 3, 7)], ids=["one size", "sizes that change"])
def test_no_bit_of_a_step_changes(sizes):
    torch.manual_seed(0)
    model = Dropouts()
    plain = trained(model, vector=False, sizes=sizes)
    before = operators.counts()
    ours = trained(model, vector=True, sizes=sizes)
    drawn = operators.counts() - before
    # The mask beside the numbers is drawn, too: its numbers are the same.
    assert drawn[NAME, operators.KERNEL] == 4 * len(sizes)
    torch.testing.assert_close(ours, plain, **EXACT)
    assert any((one == 0).any() and (one != 0).any() for one in ours)
