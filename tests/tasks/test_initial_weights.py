"""Initial weights of image classifiers, and how rounding grows in their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.images.mock_imagenet import MockSpec, generate
from gallery_lib.tasks.domains.initial_weights import BRANCH_SCALE


@pytest.mark.parametrize(
    ("name", "branches"), [("resnet18", 8), ("resnet50", 16), ("timm_vovnet", 30)]
)
def test_every_branch_starts_small_and_nothing_else_does(name, branches):
    torch.manual_seed(0)
    parameters = tasks.get(name).build_model().parameters()
    scales = [p for p in parameters if p.ndim == 1 and float(p.detach().amax()) > 0]
    small = [p for p in scales if torch.all(p == BRANCH_SCALE)]
    assert len(small) == branches
    assert all(
        torch.all(p == 1) for p in scales if not any(p is s for s in small) and len(p) != 1000
    )


@pytest.mark.parametrize("name", ["alexnet", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_filters_start_centred_in_all_layers_but_the_last(name):
    torch.manual_seed(0)
    *hidden, last = [
        m for m in tasks.get(name).build_model().modules() if isinstance(m, nn.Conv2d | nn.Linear)
    ]
    for layer in hidden:
        weight = layer.weight.detach().flatten(1)
        assert weight.mean(dim=1).abs().max() < 1e-6
        assert float(weight.square().sum(dim=1).mean()) == pytest.approx(
            2 / (1 - 1 / np.pi), rel=0.05
        )
    assert last.weight.detach().mean(dim=1).abs().max() > 1e-6


def gradients(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of every parameter, in float64, without dropout."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.zero_grad()
    tasks.get(name).loss(model, batch).backward()
    return {key: p.grad.double() for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["alexnet", "resnet18", "timm_vision_transformer", "timm_vovnet", "vgg16"]
)
def test_rounding_stays_small_in_the_gradients_at_the_initial_weights(name, tmp_path):
    spec = MockSpec(classes=8, train_per_class=2, val_per_class=1)
    generate(tmp_path / "data", spec, progress=False)
    config = TrainConfig(model=name, data_dir=str(tmp_path / "data"), image_size=64)
    data = tasks.data_of(config).train
    batch = torch.utils.data.default_collate([data[i] for i in range(16)])
    images, labels = data.finish_batch(batch)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = tasks.get(name).build_model()
    rounded = gradients(name, model, (images, labels))
    exact = gradients(name, model.double(), (images.double(), labels))
    assert set(rounded) == set(exact) == {key for key, _ in model.named_parameters()}
    for key, gradient in exact.items():
        assert (rounded[key] - gradient).norm() < 1e-2 * gradient.norm(), key
        assert abs(float(rounded[key].norm() / gradient.norm()) - 1) < 4e-3, key
