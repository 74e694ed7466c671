"""The graph pass that computes bfloat16 convolutions and products on fp32 units."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from written_operators import Counting

from gallery_lib.compiler.passes.emulated_bf16 import PASS


def dtypes(graph: fx.Graph) -> list[torch.dtype]:
    words = ("convolution", "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
    found = []
    for node in graph.nodes:
        if node.op == "call_function" and any(word in str(node.target) for word in words):
            value = node.meta["val"]
            values = value if isinstance(value, (tuple, list)) else [value]
            found.append(next(one.dtype for one in values if one is not None))
    return found


@pytest.mark.slow
def test_no_bf16_arithmetic_is_left_and_gradients_are_as_exact_as_the_emulation():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    plain = nn.Sequential(*layers, nn.Linear(16 * 64, 10))
    exact, compiled = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    count = Counting(PASS, dtypes)
    step = torch.compile(compiled, options={"post_grad_custom_pre_pass": count})
    inputs, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    F.cross_entropy(exact(inputs.double()), labels).backward()
    for network in (plain, step):
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(network(inputs).float(), labels).backward()
    forward, backward = count.noted
    assert {*forward, *backward} == {torch.float32} and len(forward) == 2 and len(backward) >= 3
    for ours, theirs, true in zip(
        compiled.parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        assert ours.dtype is torch.float32
        error, own = (
            (each.grad.double() - true.grad).norm() / (true.grad.norm() + 1e-4)
            for each in (ours, theirs)
        )
        assert error <= 2 * own + 1e-3


@pytest.mark.slow
def test_factors_of_a_product_are_kept():
    added, left, right = (torch.randn(2, 8, 8, dtype=torch.bfloat16) for _ in range(3))

    def product(added: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(added, left, right, beta=0.5, alpha=0.25)

    count = Counting(PASS, dtypes)
    compiled = torch.compile(product, options={"post_grad_custom_pre_pass": count})
    ours = compiled(added, left, right).double()
    true = 0.5 * added.double() + 0.25 * (left.double() @ right.double())
    assert set(count.noted[0]) == {torch.float32}
    torch.testing.assert_close(ours, true, rtol=2**-7, atol=2**-6)
