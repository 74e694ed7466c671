"""The speech transformer: size, padding, causality, precisions, and one graph for all lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gallery_lib.data.speech.characters import BEGIN, END
from gallery_lib.data.speech.utterances import SpeechBatch, finish_batch
from gallery_lib.models.speech_transformer import Sizes, SpeechTransformer, positions

SMALL = Sizes(features=12, vocabulary=30, width=32, heads=4, inner=64, layers=2)


def small(dtype: torch.dtype = torch.float64) -> SpeechTransformer:
    torch.manual_seed(0)
    return SpeechTransformer(SMALL).to(dtype).eval()


def batch(
    frames: int = 10, targets: int = 6, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, frames, SMALL.features, generator=generator, dtype=torch.float64).to(
        dtype
    )
    tokens = torch.randint(3, SMALL.vocabulary, (3, targets), generator=generator)
    tokens[:, 0] = BEGIN
    return features, torch.tensor([frames, frames - 3, 4]), tokens


def test_positions_are_sines_and_cosines_of_falling_frequency():
    table = positions(50, 8, like=torch.zeros(1, dtype=torch.float64))
    assert table[0].tolist() == [0, 1] * 4
    assert torch.allclose(
        table[7, 2:4],
        torch.tensor([0.7, 0.7], dtype=torch.float64).sin_().new_tensor([0.644217687, 0.764842187]),
    )
    assert positions(50, 8, like=torch.zeros(1)).dtype is torch.float32


def test_what_is_in_the_padding_changes_nothing():
    model = small()
    features, lengths, tokens = batch()
    expected = model(features, lengths, tokens)
    longer = torch.cat((features, torch.zeros(3, 6, SMALL.features, dtype=torch.float64)), dim=1)
    for i, length in enumerate(lengths.tolist()):
        longer[i, length:] = 100.0
    assert torch.allclose(model(longer, lengths, tokens), expected, rtol=0, atol=1e-12)
    for i, length in enumerate(lengths.tolist()):
        alone = model(features[i : i + 1, :length], lengths[i : i + 1], tokens[i : i + 1])
        assert torch.allclose(alone[0], expected[i], rtol=0, atol=1e-12)


def test_padded_frames_get_no_gradient_and_all_others_do():
    features, lengths, tokens = batch()
    features.requires_grad_()
    small()(features, lengths, tokens).square().sum().backward()
    assert features.grad is not None
    used = torch.arange(features.shape[1]) < lengths[:, None]
    assert torch.equal(features.grad.abs().sum(-1) > 0, used)


def test_a_target_changes_no_logits_before_it_and_those_behind_it():
    model = small()
    features, lengths, tokens = batch()
    expected = model(features, lengths, tokens)
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % SMALL.vocabulary
    differs = (model(features, lengths, changed) - expected).abs().amax(-1) > 1e-9
    assert differs.tolist() == [[False] * 3 + [True] * 3] * 3


def test_float64_stays_float64_and_float32_is_near_it():
    exact = small()(*batch())
    assert exact.dtype is torch.float64
    rounded = small(torch.float32)(*batch(dtype=torch.float32))
    assert rounded.dtype is torch.float32
    assert float(((rounded - exact).norm() / exact.norm()).detach()) < 1e-6


def test_greedy_search_takes_the_likeliest_token_each_time_and_stays_at_the_end():
    model = small()
    model.embedding.weight.data[END] *= 3  # so that some utterances end
    features, lengths, _ = batch()
    found = model.transcribe(features, lengths, max_length=12)
    assert found.shape[0] == 3 and found.shape[1] <= 12
    prefix = torch.cat((torch.full((3, 1), BEGIN), found[:, :-1]), dim=1)
    likeliest = model(features, lengths, prefix).argmax(-1)
    for tokens, best in zip(found.tolist(), likeliest.tolist(), strict=True):
        end = tokens.index(END) if END in tokens else len(tokens)
        assert tokens[: end + 1] == best[: end + 1]
        assert all(token == END for token in tokens[end:])


def marked(frames: int, targets: int) -> tuple[Tensor, Tensor, Tensor]:
    features, lengths, tokens = batch(frames, targets, torch.float32)
    finish_batch(SpeechBatch(features, lengths, tokens, tokens))
    return features, lengths, tokens


@pytest.mark.slow
def test_one_graph_serves_all_lengths():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    model = small(torch.float32).train()
    model.compile(backend=counter, fullgraph=True)
    for frames, targets in ((32, 8), (48, 8), (16, 4), (64, 12)):
        model(*marked(frames, targets)).sum().backward()
    assert counter.frame_count == 1
