"""Comparison of our optimizers with torch.optim's classes, on weights and gradients of any kind.

The oracle is torch.optim's class with foreach=False. The outcome is compared: values, states, step
counts, or the type of the error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NAMES = ("Adam", "AdamW", "SGD", "RMSprop", "RAdam")
MOMENTUM: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}}
FP32 = (torch.float32,)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


def turned(tensor: Tensor) -> Tensor:
    return tensor.permute(tuple(range(tensor.dim()))[::-1])


WEIGHTS: dict[str, Callable[[int], Tensor]] = {
    "fp32": lambda seed: random(5, 7, seed=seed),
    "channels_last": lambda seed: random(2, 3, 4, 5, seed=seed).to(
        memory_format=torch.channels_last
    ),
    "transposed": lambda seed: random(6, 4, seed=seed).t(),
    "with gaps": lambda seed: random(5, 8, seed=seed)[:, ::2],
    "no elements": lambda seed: random(0, 3, seed=seed),
    "scalar": lambda seed: random(seed=seed),
    "fp64": lambda seed: random(5, 7, seed=seed, dtype=torch.float64),
    "bf16": lambda seed: random(5, 7, seed=seed, dtype=torch.bfloat16),
    "fp16": lambda seed: random(5, 7, seed=seed, dtype=torch.float16),
    "complex": lambda seed: random(5, 7, seed=seed, dtype=torch.complex64),
    "a part": lambda seed: random(9, 7, seed=seed)[2:6],
    "infinite": lambda seed: random(5, 7, seed=seed).index_fill_(0, torch.tensor(1), torch.inf),
}
GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor | None]] = {
    "alike": lambda w, g: torch.empty_like(w).copy_(g),
    "contiguous": lambda w, g: g.contiguous(),
    "expanded": lambda w, g: (
        g.flatten()[:1].reshape([1] * w.dim()).expand(w.shape) if w.numel() else g
    ),
    "reversed strides": lambda w, g: turned(turned(g).contiguous()),
    "infinite": lambda w, g: torch.full_like(w, torch.inf),
    "NaN": lambda w, g: torch.full_like(w, torch.nan),
    "zero": lambda w, g: torch.zeros_like(w),
    "negative bit": lambda w, g: g if w.is_complex() else torch._neg_view(g.clone()),
    "sparse": lambda w, g: g.to_sparse() if w.dim() else g,
    "the weight": lambda w, g: w.detach(),
    "none": lambda w, g: None,
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adam": [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.1},
        {"betas": (0.0, 0.5)},
        {"betas": (0.3, 0.0), "maximize": True},
        {"betas": (torch.tensor(0.8), torch.tensor(0.9))},
    ],
    "AdamW": [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.0},
        {"lr": torch.tensor(0.01)},
        {"lr": torch.tensor([0.01], dtype=torch.float64)},
        {"eps": 0.0},
    ],
    "SGD": [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"weight_decay": torch.tensor(0.1)},
    ],
    "RMSprop": [
        {},
        {"momentum": 0.9},
        {"centered": True},
        {"weight_decay": 0.1, "maximize": True},
        {"alpha": 0.3},
    ],
    "RAdam": [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"betas": (0.2, 0.6)},
    ],
}


def assert_same(
    ours: Any, theirs: Any, what: str = "", rounded: tuple[torch.dtype, ...] = FP32
) -> None:
    """Assert that two results are the same.

    Values of the dtypes `rounded` may differ in fp32's rounding. What torch's class computes may
    not differ.
    """
    if isinstance(theirs, Tensor):
        assert isinstance(ours, Tensor) and ours.dtype is theirs.dtype, what
        assert ours.layout is theirs.layout, what
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
    forms: Any, name: str, scenario: Scenario, rounded: tuple[torch.dtype, ...] = FP32
) -> Any:
    """Hold a scenario with the class `name` of the module `forms` against torch.optim's."""
    ours, theirs = (
        outcome(lambda of=of: scenario(getattr(of, name), copy.deepcopy(MOMENTUM.get(name, {}))))
        for of in (forms, torch.optim)
    )
    assert_same(ours, theirs, name, rounded)
    return theirs
