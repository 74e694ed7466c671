"""Comparison of our optimizers with torch.optim's classes, which take the same steps.

The oracle is torch.optim's class with foreach=False. The outcome is compared: values, states, step
counts, or the type of the error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gallery_lib.optim import fused_cpu

NAMES = ("Adam", "AdamW", "SGD", "RMSprop", "RAdam")
every_class = pytest.mark.parametrize("name", NAMES)
MOMENTUM: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}}


def pair(name: str) -> tuple[type[torch.optim.Optimizer], type[torch.optim.Optimizer]]:
    return getattr(fused_cpu, name), getattr(torch.optim, name)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


FP32 = (torch.float32,)


def assert_same(
    ours: Any, theirs: Any, what: str = "", rounded: tuple[torch.dtype, ...] = FP32
) -> None:
    """Assert that two results are the same.

    Values of the dtypes `rounded` may differ in fp32's rounding. What torch's class computes may
    not differ.
    """
    if isinstance(theirs, Tensor):
        assert (
            isinstance(ours, Tensor) and ours.dtype is theirs.dtype and ours.layout is theirs.layout
        ), what
        bounds = {"rtol": 0.0, "atol": 0.0}
        if theirs.layout is torch.strided:
            assert ours.shape == theirs.shape, what
        if theirs.dtype in rounded:
            values = theirs.detach().coalesce().values() if theirs.is_sparse else theirs.detach()
            finite = values[values.isfinite()].abs()
            # The largest of the terms that were added up.
            largest = float(finite.max()) if finite.numel() else 0.0
            bounds = {"rtol": 2e-6, "atol": 2e-7 * (1.0 + largest)}
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, **bounds, msg=lambda m: f"{what}: {m}"
        )
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), what
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{what}.{key}", rounded)
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs) and len(ours) == len(theirs), what
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{what}[{place}]", rounded)
    else:
        assert ours == theirs, what


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error)


Scenario = Callable[[type[torch.optim.Optimizer], dict[str, Any]], Any]


def compare(
    name: str, scenario: Scenario, rounded: tuple[torch.dtype, ...] = FP32, **options: Any
) -> Any:
    ours, theirs = (
        outcome(lambda kind=kind: scenario(kind, copy.deepcopy(options))) for kind in pair(name)
    )
    assert_same(ours, theirs, name, rounded)
    return theirs
