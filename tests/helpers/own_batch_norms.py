"""Own batch norms in tests: kinds of layers, and runs, where they are off by default."""

from __future__ import annotations

import pytest

from gallery_lib.config import Config, TrainConfig, backend_config
from gallery_lib.train import recipe

every_kind_of_layer = pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"momentum": None},
        {"momentum": 0.7, "eps": 0.1},
        {"affine": False},
        {"track_running_stats": False},
    ],
    ids=["plain", "cumulative average", "eps", "without weights", "without running statistics"],
)
"""Parametrisation with the arguments of torch's batch norms that change what a layer does."""


def switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let accelerated runs fuse batch norms into own operators."""

    def with_batch_norms(config: TrainConfig) -> Config:
        result = backend_config(config)
        result.compute.batch_norm_kernels = True
        return result

    monkeypatch.setattr(recipe, "backend_config", with_batch_norms)
