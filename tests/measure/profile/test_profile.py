"""A step's time is put into the groups that a reader thinks in, and adds up to the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gallery_lib.measure.profile.operator_groups import FUSED, OPTIMIZER, OTHER, OUTSIDE, group_of
from gallery_lib.measure.profile.step_profile import StepProfile, profile_steps

GROUPS = {
    "aten::mkldnn_convolution": "convolutions",
    "aten::convolution_backward": "convolutions",
    "cudnn_infer_volta_scudnn_128x64_relu_interior_fprop": "convolutions",
    "aten::_convert_indices_from_coo_to_csr": OTHER,
    "aten::native_batch_norm_backward": "batch norms",
    "aten::native_layer_norm": "layer norms",
    "aten::addmm": "matrix products",
    "sm90_xmma_gemm_f32f32_tf32": "matrix products",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::mkldnn_rnn_layer": "recurrent layers",
    "aten::threshold_backward": "activations",
    "aten::_log_softmax": "loss",
    "aten::_softmax_backward_data": "softmax",
    "aten::max_pool2d_with_indices": "pooling",
    "aten::upsample_bilinear2d": "resampling",
    "aten::embedding_dense_backward": "embeddings",
    "aten::scatter_reduce_": "scatters",
    "aten::native_dropout": "dropout",
    "aten::copy_": "copies and conversions",
    "aten::fill_": "fills and new memory",
    "aten::sum": "sums and means",
    "aten::add_": "element-wise operators",
    "Torch-Compiled Region: 0/0": FUSED,
    "## Call CompiledFxGraph fabc ##": FUSED,
    "triton_poi_fused_add_relu_3": FUSED,
    "Optimizer.step#AdamW.step": OPTIMIZER,
}


@pytest.mark.parametrize("operator", GROUPS)
def test_an_operator_is_in_its_group(operator: str) -> None:
    assert group_of(operator) == GROUPS[operator]


def test_what_an_optimizer_calls_is_the_optimizers() -> None:
    assert group_of("aten::add_", in_optimizer=True) == OPTIMIZER


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def test_the_groups_add_up_to_the_step_and_name_what_the_step_does() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 3, 64, 64)
    steps_of(model, optimizer, batch)
    profile = profile_steps(lambda: steps_of(model, optimizer, batch), 2)
    assert {"convolutions", "batch norms", "activations", OPTIMIZER, OUTSIDE} <= set(profile.groups)
    assert sum(profile.groups.values()) == pytest.approx(profile.seconds)
    assert list(profile.groups.values()) == sorted(profile.groups.values(), reverse=True)
    assert sum(profile.share(group) for group in profile.groups) == pytest.approx(1.0)


def test_a_compiled_step_has_the_compilers_kernels() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sigmoid())
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(4, 8)
    steps_of(compiled, optimizer, batch)
    profile = profile_steps(lambda: steps_of(compiled, optimizer, batch), 2)
    assert profile.groups.get(FUSED, 0.0) > 0.0


def test_a_share_is_of_the_whole_step() -> None:
    profile = StepProfile({"convolutions": 0.3, OPTIMIZER: 0.1})
    assert profile.seconds == pytest.approx(0.4)
    assert profile.share("convolutions") == pytest.approx(0.75)
    assert profile.share("pooling") == 0.0
