"""Recipes of a waterfall: each technique comes alone."""

from __future__ import annotations

import functools

import pytest
import torch

from gallery_lib import optim
from gallery_lib.config import TrainConfig
from gallery_lib.measure.variants import recipes
from gallery_lib.optim import OptimizerSpec
from gallery_lib.train.recipe import Plain


@pytest.mark.parametrize(
    "technique", [recipes.SMALL_CONVOLUTIONS, recipes.MIXED_PRODUCTS, recipes.LARGE_BATCH_NORMS]
)
def test_what_is_for_bfloat16_alone_takes_no_turns_in_fp32(
    technique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes.hardware, "device_type", lambda: "cpu")
    assert recipes.reason_not_applied(technique, "O0") == "the run is in fp32"


def test_a_technique_comes_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes.hardware, "prefers_channels_last", lambda device_type: True)

    def prepared(*names: str):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
        spec = OptimizerSpec("SGD", lr=0.1)
        loader = torch.utils.data.DataLoader(torch.arange(2))
        build_optimizer = functools.partial(
            spec.build, model.parameters(), lr=None, weight_decay=None
        )
        return recipes.recipe(names).prepare(
            Plain(model, loader, build_optimizer, TrainConfig(), None)
        )

    layout, fused = prepared("layout"), prepared(recipes.FUSED)
    assert (
        layout.loader.memory_format is torch.channels_last
        and layout.model[0].weight.is_contiguous()
        and optim.kind(layout.optimizer) == "torch's own"
    )
    assert layout.techniques == {"layout": "channels_last"}
    assert fused.model[0].weight.is_contiguous() and optim.kind(fused.optimizer) == "fused"
    assert fused.techniques == {"optimizer": "fused"}
