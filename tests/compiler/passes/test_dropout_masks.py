"""The graph pass that draws dropout's masks by our operator: the same elements, to the bit."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from written_operators import CPU

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler
from gallery_lib.kernels.dropout_mask import NAME
from gallery_lib.kernels.runtime import operators

pytestmark = pytest.mark.slow  # compiles


class Dropouts(nn.Module):
    """Model with dropout of fp32, of bf16 and inside attention, of nothing and of everything.

    Its last result uses random numbers as they are, and one mask beside them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 24)

    def forward(self, x: torch.Tensor, heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
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


def trained(model: nn.Module, *, vector: bool, sizes: tuple[int, ...]) -> list[torch.Tensor]:
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
    for one, other in zip(plain, ours, strict=True):
        assert torch.equal(one, other)
    assert any((one == 0).any() and (one != 0).any() for one in ours)
