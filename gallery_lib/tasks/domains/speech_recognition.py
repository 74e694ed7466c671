"""Shared parts of speech recognition: utterances with transcripts, loss, character error rate.

The loss is cross-entropy with smoothed labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.characters import END, UNKNOWN
from gallery_lib.data.speech.utterances import IGNORED, SpeechBatch, SpeechFolder
from gallery_lib.system import paths
from gallery_lib.tasks.domains.cross_entropy import cross_entropy
from gallery_lib.tasks.task import Splits

LABEL_SMOOTHING = 0.1


def utterances(config: TrainConfig, vocabulary_size: int) -> Splits:
    """Return `train/` and `val/` of the folder `config.data_dir`, else of the mock speech.

    Utterances have about `config.sequence_length` frames.
    """
    root = Path(config.data_dir or paths.data_dir("speech-small"))
    assert config.sequence_length is not None
    train = SpeechFolder(root / "train", config.sequence_length, vocabulary_size)
    return Splits(
        train=train,
        held_out=SpeechFolder(root / "val", config.sequence_length, vocabulary_size, train),
    )


def loss(model: nn.Module, batch: SpeechBatch) -> Tensor:
    """Return the cross-entropy with smoothed labels, over what is no padding.

    The arithmetic is in fp32 under autocast too.
    """
    logits = model(batch.features, batch.lengths, batch.inputs)  # [N, U, vocabulary]
    return cross_entropy(
        logits.flatten(0, 1),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=LABEL_SMOOTHING,
    )


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the fewest insertions, deletions and substitutions that turn `a` into `b`.

    Levenshtein, 1966.
    """
    row = list(range(len(b) + 1))  # distances from what has been seen of a to each prefix of b
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _until_end(tokens: Sequence[int]) -> list[int]:
    """Return the tokens before END or padding."""
    stops = [i for i, token in enumerate(tokens) if token in (END, IGNORED)]
    return list(tokens[: stops[0]] if stops else tokens)


def _transcribe(model: Any, batch: SpeechBatch) -> list[list[int]]:
    """Return the tokens of each utterance by greedy search, up to the padded length."""
    found = model.transcribe(batch.features, batch.lengths, batch.labels.shape[1])
    return [_until_end(tokens) for tokens in found.tolist()]


def metrics(model: nn.Module, batch: SpeechBatch) -> dict[str, tuple[Tensor, int]]:
    """Return character error rate of greedy search, and accuracy of the next character.

    For the accuracy, all characters before the next one are given. An unknown character is never
    right.
    """
    references = [_until_end(labels) for labels in batch.labels.tolist()]
    transcripts = [
        [-1 if token == UNKNOWN else token for token in tokens]
        for tokens in _transcribe(model, batch)
    ]
    errors = sum(map(edit_distance, references, transcripts))
    counted = (batch.labels != IGNORED) & (batch.labels != END)  # [N, U]
    best = model(batch.features, batch.lengths, batch.inputs).argmax(-1)
    right = (best == batch.labels) & counted & (batch.labels != UNKNOWN)
    characters = sum(map(len, references))
    return {
        "character_error_rate": (torch.tensor(errors, device=batch.labels.device), characters),
        "character_accuracy": (right.sum(), characters),
    }


def chance(splits: Splits) -> dict[str, float]:
    """Return the metrics of a model that knows nothing.

    An empty transcript misses every character. The accuracy is the share of the most frequent
    character among the held-out ones.
    """
    data: Any = splits.held_out
    counts = Counter("".join(piece.transcript for piece in data.pieces))
    return {
        "character_error_rate": 1.0,
        "character_accuracy": max(counts.values()) / counts.total(),
    }
