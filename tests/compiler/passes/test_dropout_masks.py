"""The graph pass that draws dropout's masks by our operator: the same elements, to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler
from gallery_lib.kernels.dropout_mask import NAME
from gallery_lib.kernels.runtime import operators

pytestmark = pytest.mark.slow  # compiles


class Dropouts(nn.Module):
    """Model with dropout of fp32, of bf16 and inside attention, of nothing and of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 24)

    def forward(self, x: torch.Tensor, heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            rounded = functional.dropout(self.linear(x), 0.1)
        attended = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2)
        return (
            rounded,
            functional.dropout(x, 0.25),
            attended,
            functional.dropout(x, 0.0),
            functional.dropout(x, 1.0),
        )


def trained(model: nn.Module, *, vector: bool, dynamic: bool = False) -> list[torch.Tensor]:
    """Return results and gradients of two steps of a compiled copy, the second of another size."""
    model = copy.deepcopy(model)
    compile_model(model, Compiler(vector_dropout=vector), torch.device("cpu"))
    kept = []
    for samples in (5, 3, 7) if dynamic else (5,):
        torch.manual_seed(samples)
        x = torch.randn(samples, 7, 16, requires_grad=True)
        heads = torch.randn(samples, 3, 9, 8, requires_grad=True)
        results = model(x, heads)
        torch.stack([result.float().square().mean() for result in results]).sum().backward()
        gradients = [tensor.grad for tensor in (x, heads, model.linear.weight)]
        kept += [tensor.detach().clone() for tensor in (*results, *gradients)]
    return kept


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_bit_of_a_step_changes(dynamic):
    torch.manual_seed(0)
    model = Dropouts()
    plain = trained(model, vector=False, dynamic=dynamic)
    before = operators.counts()
    ours = trained(model, vector=True, dynamic=dynamic)
    drawn = operators.counts() - before
    assert drawn[NAME, operators.KERNEL] == 3 * (3 if dynamic else 1)
    for one, other in zip(plain, ours, strict=True):
        assert torch.equal(one, other)
    assert any((one == 0).any() and (one != 0).any() for one in ours)


class Noise(nn.Module):
    """Model whose random numbers are used as they are, and one mask beside them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.rand_like(x)
        return numbers * x + (numbers > 0.5) + torch.randn_like(x)


def test_numbers_that_are_used_themselves_stay_the_compilers():
    x = torch.ones(6, 33)
    results = []
    for vector in (False, True):
        model = Noise()
        compile_model(model, Compiler(vector_dropout=vector), torch.device("cpu"))
        torch.manual_seed(1)
        results.append(model(x))
    assert torch.equal(*results)
    assert results[0].std() > 0.1
