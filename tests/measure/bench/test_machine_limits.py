"""The best that a machine can do, on machines of every kind."""

from __future__ import annotations

import pytest
import torch

from gallery_lib.measure.bench import machine_limits


@pytest.mark.parametrize(
    ("longest", "sizes"), [(0.0, [256]), (float("inf"), [256, 512, 1024, 2048])]
)
def test_products_become_larger_until_they_take_too_long(
    monkeypatch: pytest.MonkeyPatch, longest: float, sizes: list[int]
) -> None:
    """A CPU that emulates bfloat16 by plain loops would take minutes for the largest."""
    seen = []

    def product(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.append(len(a))
        return out.copy_(a)

    monkeypatch.setattr(machine_limits, "_LONGEST_PRODUCT", longest)
    monkeypatch.setattr(torch, "mm", product)
    found = machine_limits.measure_limits(torch.device("cpu"), (torch.float32,))
    assert list(dict.fromkeys(seen)) == sizes
    assert found["float32"] > 0 and found["copy"] > 0
