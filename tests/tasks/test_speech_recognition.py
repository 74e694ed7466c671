"""Speech recognition: edit distance, character error rate, the loss, and what is shown.

The loss is tested for padding and precision.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.characters import BEGIN, END, UNKNOWN
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate
from gallery_lib.data.speech.utterances import IGNORED, SpeechBatch
from gallery_lib.optim import noam
from gallery_lib.tasks.domains import speech_recognition as domain
from gallery_lib.tasks.task import Splits

VOCABULARY = 20


class Scripted(nn.Module):
    """A model that always says the same."""

    def __init__(self, said: list[list[int]], logits: Tensor) -> None:
        super().__init__()
        self.said, self.logits = said, logits

    def forward(self, features: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        return self.logits

    def transcribe(self, features: Tensor, lengths: Tensor, max_length: int) -> Tensor:
        return torch.tensor(self.said)


def batch(labels: list[list[int]]) -> SpeechBatch:
    targets = torch.tensor(labels)
    inputs = torch.cat((torch.full((len(labels), 1), BEGIN), targets[:, :-1]), dim=1).clamp(min=0)
    return SpeechBatch(
        torch.zeros(len(labels), 16, 320), torch.full((len(labels),), 16), inputs, targets
    )


def one_hot(tokens: list[list[int]]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), VOCABULARY).float()


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_known_edit_distances(a, b, distance):
    assert domain.edit_distance([*map(ord, a)], [*map(ord, b)]) == distance


words = st.lists(st.integers(0, 3), max_size=8)


@given(a=words, b=words, c=words)
def test_edit_distance_is_a_metric(a, b, c):
    distance = domain.edit_distance
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c)
    assert abs(len(a) - len(b)) <= distance(a, b) <= max(len(a), len(b))


def test_the_error_rate_counts_errors_over_spoken_characters_and_the_accuracy_leaves_out_ends():
    labels = [[5, 6, 7, END], [8, END, IGNORED, IGNORED]]
    logits = one_hot([[5, 6, 9, END], [9, END, 5, 5]])
    found = domain.metrics(Scripted([[5, 7, END, 3], [8, 9, 10, END]], logits), batch(labels))
    errors, characters = found["character_error_rate"]
    assert (int(errors), characters) == (1 + 2, 4)  # 6 left out; 9 and 10 put in
    right, counted = found["character_accuracy"]
    assert (int(right), counted) == (2, 4)


def test_an_unknown_character_is_never_right():
    logits = one_hot([[UNKNOWN, END]])
    found = domain.metrics(Scripted([[UNKNOWN, END]], logits), batch([[UNKNOWN, END]]))
    assert int(found["character_error_rate"][0]) == 1 and int(found["character_accuracy"][0]) == 0


def test_the_loss_is_smoothed_and_padding_does_not_count():
    logits = torch.randn(
        2, 3, VOCABULARY, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    labels = [[5, 6, END], [7, END, IGNORED]]
    log_p = logits.log_softmax(-1)
    places = [
        (i, j) for i, row in enumerate(labels) for j, label in enumerate(row) if label != IGNORED
    ]
    expected = (
        sum(-0.9 * log_p[i, j, labels[i][j]] - 0.1 * log_p[i, j].mean() for i, j in places) / 5
    )
    loss = domain.loss(Scripted([], logits), batch(labels))
    assert loss.dtype is torch.float64
    assert math.isclose(float(loss), float(expected), rel_tol=1e-12)
    changed = logits.clone()
    changed[1, 2] += 100 * torch.arange(VOCABULARY)
    assert float(domain.loss(Scripted([], changed), batch(labels))) == float(loss)
    assert domain.loss(Scripted([], logits.bfloat16()), batch(labels)).dtype is torch.float32


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
    return domain.utterances(
        TrainConfig(data_dir=str(root), sequence_length=160), vocabulary_size=VOCABULARY
    )


def test_chance_is_an_empty_transcript_and_the_most_frequent_character(splits):
    held_out: Any = splits.held_out
    text = "".join(piece.transcript for piece in held_out.pieces)
    found = domain.chance(splits)
    assert found["character_error_rate"] == 1.0
    assert found["character_accuracy"] == max(text.count(c) for c in text) / len(text)


def test_mock_speech_that_is_missing_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(ValueError, match=r"mock_speech\.py"):
        domain.utterances(
            TrainConfig(data_dir=str(tmp_path / "nothing"), sequence_length=160), VOCABULARY
        )
