"""Utterances and their batches: frames, cuts between words, vocabularies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import refused

from gallery_lib.data.speech.characters import BEGIN, END, UNKNOWN, Characters, tidy
from gallery_lib.data.speech.features import list_utterances, load
from gallery_lib.data.speech.utterances import (
    IGNORED,
    SpeechFolder,
    collate,
    stack_frames,
    stacked_length,
)

# Frames, items and batches


@pytest.mark.parametrize("frames", [1, 3, 4, 10, 12])
def test_a_stacked_frame_is_four_frames_from_every_third_on(frames: int) -> None:
    plain = np.arange(frames, dtype=np.float32)[:, None].repeat(2, axis=1)
    stacked = stack_frames(plain)
    assert stacked.shape == (stacked_length(frames), 8)
    for t, row in enumerate(stacked.reshape(-1, 4, 2)):
        assert row[:, 0].tolist() == [min(3 * t + i, frames - 1) for i in range(4)]


def test_an_item_is_normalised_frames_and_the_numbers_of_its_characters(root: Path) -> None:
    data = SpeechFolder(root / "train", 160, 100)
    features, characters = data[5]
    listed = list_utterances(root / "train", "")[5]
    assert data.characters.decode(characters.tolist()) == listed.label
    assert (features.dtype, features.shape) == (
        torch.float32,
        (stacked_length(len(load(listed, 80))), 320),
    )
    frames = torch.cat([data[i][0][:, :80] for i in range(len(data))])
    assert float(frames.mean().abs()) < 0.05 and 0.9 < float(frames.std()) < 1.1
    assert data.lengths == [len(data[i][0]) for i in range(len(data))]


def test_a_batch_is_padded_to_round_lengths() -> None:
    items = [
        (torch.ones(17, 320), torch.tensor([5, 6, 7, 8])),
        (torch.ones(3, 320), torch.tensor([9])),
    ]
    batch = collate(items)
    assert batch.features.shape == (2, 32, 320) and batch.lengths.tolist() == [17, 3]
    assert batch.features.sum(dim=(1, 2)).tolist() == [17 * 320, 3 * 320]
    assert batch.inputs.tolist() == [[BEGIN, 5, 6, 7, 8, END, END, END], [BEGIN, 9, *[END] * 6]]
    assert batch.labels.tolist() == [[5, 6, 7, 8, END, *[IGNORED] * 3], [9, END, *[IGNORED] * 6]]


# Lengths


def test_a_smaller_sequence_length_cuts_utterances_between_words(root: Path) -> None:
    whole, cut = SpeechFolder(root / "train", 160, 100), SpeechFolder(root / "train", 40, 100)
    assert 25 < np.mean(cut.lengths) < 55 and np.std(cut.lengths) > 8
    spoken = {piece.utterance.name: "" for piece in whole.pieces}
    stop = dict.fromkeys(spoken, 0)
    for piece in cut.pieces:
        assert piece.start == stop[piece.utterance.name]
        spoken[piece.utterance.name] += piece.transcript
        stop[piece.utterance.name] = piece.stop
    assert spoken == {piece.utterance.name: piece.transcript for piece in whole.pieces}
    assert stop == {piece.utterance.name: piece.utterance.frames for piece in whole.pieces}
    assert [p.transcript for p in SpeechFolder(root / "train", 40, 100).pieces] == [
        p.transcript for p in cut.pieces
    ]


# Characters


def test_characters_are_numbered_by_frequency_and_others_are_unknown() -> None:
    characters = Characters.of(["abba", "cab"], 10, "here")
    assert characters.characters == ["a", "b", "c"] and len(characters) == 6
    assert characters.encode("cabx") == [5, 3, 4, UNKNOWN]
    assert characters.decode([5, 3, 4, END, 3]) == "cab"
    assert characters.decode([3, UNKNOWN, BEGIN, 99]) == "a\ufffd\ufffd\ufffd"


def test_more_characters_than_the_model_has_room_for_are_refused() -> None:
    assert len(Characters.of(["abc"], 6, "here")) == 6
    with refused("data_dir", "here", "4 different", "room for 3"):
        Characters.of(["abcd"], 6, "here")


def test_spaces_stay_except_between_ideographs() -> None:
    assert tidy("  two   words ") == "two words"
    assert tidy("今天 天气 好 OK  now") == "今天天气好 OK now"
    assert tidy("cafe\u0301") == "café"


def test_held_out_data_takes_vocabulary_and_scale_from_the_training_data(root: Path) -> None:
    train = SpeechFolder(root / "train", 160, 100)
    held_out = SpeechFolder(root / "val", 160, 100, train)
    for name in ("characters", "mean", "deviation"):
        assert getattr(held_out, name) is getattr(train, name)


def test_other_features_than_80_filter_banks_are_refused(copy: Path) -> None:
    path = copy / "train" / "000000.npy"
    np.save(path, np.zeros((len(np.load(path)), 40), np.float32))
    with refused(path, "40 values", "80"):
        SpeechFolder(copy / "train", 160, 100)
