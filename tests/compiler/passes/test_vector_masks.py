"""Masks by vector instructions in compiled code: the lines that change, and the same values."""

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from written_operators import CPU

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler

pytestmark = pytest.mark.slow  # compiles
BY_BYTES = "uint8_t*>("


class Masks(nn.Module):
    """Model that reads a mask, makes masks, joins them, and turns them into numbers."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
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
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.where(mask.t(), x, 0.0).contiguous(), (x > 0).t().contiguous(), x.t() > 0


class Each(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pairs: list[tuple[torch.Tensor, ...]]) -> list[tuple[torch.Tensor, ...]]:
        return [self.model(*pair) for pair in pairs]


def check(model: nn.Module, pairs: list[tuple[torch.Tensor, ...]]) -> None:
    torch._dynamo.reset()
    model = Each(model)
    plain = model(pairs)
    compile_model(model, Compiler(), CPU)
    for ours, eager in zip(model(pairs), plain, strict=True):
        for one, other in zip(ours, eager, strict=True):
            assert torch.equal(one, other) and one.dtype is other.dtype


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
        for ours, plain in zip(model(x, mask), Masks()(x, mask), strict=True):
            assert torch.equal(ours, plain)


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
