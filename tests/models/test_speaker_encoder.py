"""The speaker encoder: unit vectors of the last frame, and a trained scale and offset."""

from __future__ import annotations

import torch

from gallery_lib.models.speaker_encoder import SpeakerEncoder


def small() -> SpeakerEncoder:
    torch.manual_seed(0)
    return SpeakerEncoder(dims=6, hidden=24, projection=16)


def test_any_leading_shape_gives_unit_vectors() -> None:
    model, features = small(), torch.randn(5, 2, 9, 6)
    embeddings = model(features)
    assert embeddings.shape == (5, 2, 16)
    assert torch.allclose(embeddings.norm(dim=-1), torch.ones(5, 2))
    assert torch.allclose(embeddings[3, 1], model(features[3:4, 1])[0], atol=1e-6)


def test_the_embedding_is_the_last_frame_s_and_depends_on_the_first_one() -> None:
    model, features = small(), torch.randn(1, 9, 6, requires_grad=True)
    last = model.layers(features)[:, -1]
    assert torch.allclose(model(features), last / last.norm())
    model(features)[0, 0].backward()
    assert features.grad is not None and features.grad[0, 0].abs().max() > 0


def test_an_untrained_model_already_tells_inputs_apart_by_more_than_bfloat16_rounds() -> None:
    torch.manual_seed(0)
    embeddings = SpeakerEncoder()(torch.randn(8, 1, 40).expand(8, 20, 40))
    cosines = (embeddings @ embeddings.T)[~torch.eye(8, dtype=torch.bool)]
    assert cosines.abs().max() < 0.9


def test_projections_have_no_bias_and_the_scale_and_offset_start_at_10_and_minus_5() -> None:
    model = SpeakerEncoder()
    assert [tuple(p.shape) for name, p in model.named_parameters() if "project" in name] == [
        (256, 768)
    ] * 3
    assert (
        dict(model.named_parameters())["scale"].item() == 10
        and dict(model.named_parameters())["offset"].item() == -5
    )


def test_embeddings_are_float32_under_autocast_and_float64_in_float64() -> None:
    model, features = small(), torch.randn(2, 9, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(features).dtype is torch.float32
    assert model.double()(features.double()).dtype is torch.float64
