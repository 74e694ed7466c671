"""Own batch norms in runs, where they are off by default."""

from __future__ import annotations

import pytest

from gallery_lib.config import Config, TrainConfig, backend_config
from gallery_lib.train import recipe


def switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let accelerated runs fuse batch norms into own operators."""

    def with_batch_norms(config: TrainConfig) -> Config:
        result = backend_config(config)
        result.compute.batch_norm_kernels = True
        return result

    monkeypatch.setattr(recipe, "backend_config", with_batch_norms)
