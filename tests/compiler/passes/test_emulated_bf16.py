"""The graph pass that computes bfloat16 convolutions and products on fp32 units."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gallery_lib.compiler.passes.emulated_bf16 import EmulatedBf16


class Recording(EmulatedBf16):
    """Graph pass that counts what is left of bfloat16 operators."""

    def __init__(self) -> None:
        self.bf16_operators: list[str] = []
        self.widened = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        super().__call__(graph)
        for node in graph.nodes:
            name = str(node.target)
            if node.op == "call_function" and any(
                word in name for word in ("convolution", "aten.mm", "aten.addmm", "aten.bmm")
            ):
                value = node.meta["val"]
                values = [
                    v
                    for v in (value if isinstance(value, (tuple, list)) else [value])
                    if v is not None
                ]
                if any(v.dtype is torch.bfloat16 for v in values):
                    self.bf16_operators.append(name)
                else:
                    self.widened += 1

    def uuid(self) -> None:
        return None  # never taken from the cache, so that the pass runs


@pytest.mark.slow
def test_no_bf16_arithmetic_is_left_and_gradients_are_as_exact_as_the_emulation() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 10),
    )
    exact = copy.deepcopy(plain).double()
    compiled = copy.deepcopy(plain)
    record = Recording()
    step = torch.compile(compiled, options={"post_grad_custom_pre_pass": record})
    inputs, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    F.cross_entropy(exact(inputs.double()), labels).backward()
    for network in (plain, step):
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(network(inputs).float(), labels).backward()
    assert record.bf16_operators == []
    assert record.widened >= 5  # two forward, three backward
    for (name, ours), theirs, true in zip(
        compiled.named_parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        assert ours.dtype is torch.float32
        scale = true.grad.norm() + 1e-4
        error = (ours.grad.double() - true.grad).norm() / scale
        own = (theirs.grad.double() - true.grad).norm() / scale
        assert error <= 2 * own + 1e-3, name
