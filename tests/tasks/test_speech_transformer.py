"""Speech-Transformer: padding, causality, one graph for all lengths, loss and error rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.characters import BEGIN, END, UNKNOWN
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate
from gallery_lib.data.speech.utterances import IGNORED, SpeechBatch, finish_batch
from gallery_lib.optim import noam
from gallery_lib.tasks import speech_transformer as domain
from gallery_lib.tasks.speech_transformer import Sizes, SpeechTransformer, positions
from gallery_lib.tasks.task import Splits

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
        alone = model(features[i : i + 1, :length], lengths[i : i + 1], tokens[i : i + 1])
        assert torch.allclose(alone[0], expected[i], rtol=0, atol=1e-12)
    assert torch.allclose(model(longer, lengths, tokens), expected, rtol=0, atol=1e-12)


def test_a_target_changes_no_logits_before_it_and_those_behind_it():
    model = small()
    features, lengths, tokens = batch()
    expected = model(features, lengths, tokens)
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % SMALL.vocabulary
    differs = (model(features, lengths, changed) - expected).abs().amax(-1) > 1e-9
    assert differs.tolist() == [[False] * 3 + [True] * 3] * 3


def test_float64_stays_float64_and_float32_is_near_it():
    exact, rounded = small()(*batch()), small(torch.float32)(*batch(dtype=torch.float32))
    assert (exact.dtype, rounded.dtype) == (torch.float64, torch.float32)
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


@pytest.mark.slow
def test_one_graph_serves_all_lengths():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    model = small(torch.float32).train()
    model.compile(backend=counter, fullgraph=True)
    for frames, targets in ((32, 8), (48, 8), (16, 4), (64, 12)):
        features, lengths, tokens = batch(frames, targets, torch.float32)
        finish_batch(SpeechBatch(features, lengths, tokens, tokens))
        model(features, lengths, tokens).sum().backward()
    assert counter.frame_count == 1


VOCABULARY = 20


class Scripted(nn.Module):
    def __init__(self, said: list[list[int]], logits: Tensor) -> None:
        super().__init__()
        self.said, self.logits = said, logits

    def forward(self, features: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        return self.logits

    def transcribe(self, features: Tensor, lengths: Tensor, max_length: int) -> Tensor:
        return torch.tensor(self.said)


def labelled(labels: list[list[int]]) -> SpeechBatch:
    targets = torch.tensor(labels)
    inputs = torch.cat((torch.full((len(labels), 1), BEGIN), targets[:, :-1]), dim=1).clamp(min=0)
    return SpeechBatch(
        torch.zeros(len(labels), 16, 320), torch.full((len(labels),), 16), inputs, targets
    )


def one_hot(tokens: list[list[int]]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), VOCABULARY).float()


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2), ("flaw", "lawn", 2)],
)
def test_known_edit_distances(a, b, distance):
    assert domain.edit_distance([*map(ord, a)], [*map(ord, b)]) == distance


def test_the_error_rate_counts_errors_over_spoken_characters_and_the_accuracy_leaves_out_ends():
    labels = [[5, 6, 7, END], [8, END, IGNORED, IGNORED]]
    logits = one_hot([[5, 6, 9, END], [9, END, 5, 5]])
    found = domain.metrics(Scripted([[5, 7, END, 3], [8, 9, 10, END]], logits), labelled(labels))
    errors, characters = found["character_error_rate"]
    assert (int(errors), characters) == (1 + 2, 4)  # 6 left out; 9 and 10 put in
    right, counted = found["character_accuracy"]
    assert (int(right), counted) == (2, 4)
    # An unknown character is never right.
    unknown = [[UNKNOWN, END]]
    found = domain.metrics(Scripted(unknown, one_hot(unknown)), labelled(unknown))
    assert int(found["character_error_rate"][0]) == 1 and int(found["character_accuracy"][0]) == 0


def test_noam_rises_to_one_and_falls_with_the_root():
    factor = noam(10)
    assert [round(factor(n), 6) for n in (0, 4, 9, 39)] == [0.1, 0.5, 1.0, 0.5]
    assert max(factor(n) for n in range(200)) == 1.0
    width, warmup, k = 512, 4000, 1.0
    peak = k / math.sqrt(width * warmup)
    for update in (1, 100, 4000, 100_000):
        paper = k * width**-0.5 * min(update**-0.5, update * warmup**-1.5)
        assert math.isclose(peak * noam(warmup)(update - 1), paper, rel_tol=1e-12)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    root = tmp_path_factory.mktemp("data") / "speech"
    generate(root, SpeechSpec(characters=12, words=10, train=12, val=6))
    return domain.utterances(TrainConfig(data_dir=str(root), sequence_length=160))


def test_chance_is_an_empty_transcript_and_the_most_frequent_character(splits):
    held_out: Any = splits.held_out
    text = "".join(piece.transcript for piece in held_out.pieces)
    found = domain.chance(splits)
    assert found["character_error_rate"] == 1.0
    assert found["character_accuracy"] == max(text.count(c) for c in text) / len(text)
