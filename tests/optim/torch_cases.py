"""Weights, gradients and options that torch's optimizers take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from optim.torch_oracle import random
from torch import Tensor


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
    ],
    "AdamW": [
        {},
        {"amsgrad": True},
        {"weight_decay": 0.0},
        {"lr": torch.tensor(0.01)},
        {"eps": 0.0},
    ],
    "SGD": [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
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
