"""The speaker encoder: unit vectors of the last frame, and a trained scale and offset."""

from __future__ import annotations

import torch

from gallery_lib.models.speaker_encoder import SpeakerEncoder


def small() -> SpeakerEncoder:
    torch.manual_seed(0)
    return SpeakerEncoder(dims=6, hidden=24, projection=16)


def test_any_leading_shape_gives_unit_vectors():
    model, features = small(), torch.randn(5, 2, 9, 6)
    embeddings = model(features)
    assert embeddings.shape == (5, 2, 16)
    assert torch.allclose(embeddings.norm(dim=-1), torch.ones(5, 2))
    assert torch.allclose(embeddings[3, 1], model(features[3:4, 1])[0], atol=1e-6)


def test_the_embedding_is_the_last_frame_s_and_depends_on_the_first_one():
    model, features = small(), torch.randn(1, 9, 6, requires_grad=True)
    last = model.layers(features)[:, -1]
    assert torch.allclose(model(features), last / last.norm())
    model(features)[0, 0].backward()
    assert features.grad is not None and features.grad[0, 0].abs().max() > 0


def test_projections_have_no_bias_and_the_scale_and_offset_start_at_10_and_minus_5():
    model = SpeakerEncoder()
    parameters = dict(model.named_parameters())
    shapes = [tuple(p.shape) for name, p in parameters.items() if "project" in name]
    assert shapes == [(256, 768)] * 3
    assert (parameters["scale"].item(), parameters["offset"].item()) == (10, -5)


def test_embeddings_are_float32_under_autocast_and_float64_in_float64():
    model, features = small(), torch.randn(2, 9, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(features).dtype is torch.float32
    assert model.double()(features.double()).dtype is torch.float64
