"""Speakers in pairs of utterances: the mock set, the data set, and reports on unfit data."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import refused
from torch.utils.data import DataLoader

from gallery_lib.data.speech.mock_speakers import SpeakerSpec, features, generate
from gallery_lib.data.speech.speakers import SpeakerPairs


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return mock data of nine speakers, which must not be changed.

    Six are to train on and three are held out, with five utterances each.
    """
    folder = tmp_path_factory.mktemp("speakers") / "small"
    generate(folder, SpeakerSpec(train=6, val=3, utterances=5, seed=2))
    return folder


def training(root: Path, frames: int = 20, seed: int = 0) -> SpeakerPairs:
    return SpeakerPairs(root, "train", frames, 40, train=True, seed=seed)


def items(data: SpeakerPairs, workers: int = 0) -> torch.Tensor:
    return torch.cat([batch for batch, _ in DataLoader(data, 4, num_workers=workers)])


def test_a_training_item_is_a_speaker_in_two_different_utterances(root: Path) -> None:
    data = training(root, frames=120)
    assert len(data) == 6 and data.speakers == [f"train-{i:05d}" for i in range(6)]
    pair, label = data[4]
    assert (pair.shape, pair.dtype, label) == ((2, 120, 40), torch.float32, 4)
    mean, deviation = data.statistics
    own = [(features(2, "train", 4, number) - mean) / deviation for number in range(5)]
    found = []
    for utterance in pair.numpy():
        matches = [
            n
            for n, whole in enumerate(own)
            for s in range(len(whole) - 119)
            if np.allclose(whole[s : s + 120], utterance, atol=1e-5)
        ]
        assert len(matches) == 1
        found += matches
    assert len(set(found)) == 2


def test_items_are_normalised_by_the_training_utterances(root: Path) -> None:
    train = training(root, frames=100)
    values = torch.cat([items(train) for _ in range(3)])
    assert abs(values.mean()) < 0.2 and abs(values.std() - 1) < 0.2
    held_out = SpeakerPairs(root, "val", 100, 40, train=False, statistics=train.statistics)
    mean, deviation = train.statistics
    whole = features(2, "val", 0, 0)
    start = (len(whole) - 100) // 2
    assert np.allclose(
        held_out[0][0][0].numpy(), (whole[start : start + 100] - mean) / deviation, atol=1e-5
    )


def test_held_out_items_are_all_pairs_of_each_speaker_always_the_same(root: Path) -> None:
    data = SpeakerPairs(root, "val", 20, 40, train=False)
    # Five utterances are two pairs.
    assert [data[i][1] for i in range(len(data))] == [0, 1, 2] * 2
    first = items(data)
    data.set_epoch(3)
    assert torch.equal(first, items(data))
    assert len({tuple(values) for values in first[:, :, 0, 0].tolist()}) == 6
    assert not set(data.speakers) & set(training(root).speakers)


def test_utterances_shorter_than_a_crop_are_counted_and_named(root: Path, tmp_path: Path) -> None:
    with refused("sequence_length", "201 frames", "train-00000 has 0"):
        training(root, frames=201)
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    assert training(copy).notices == ()
    lines = (copy / "train" / "manifest.tsv").read_text().splitlines()
    path, label, _ = lines[3].split("\t")
    np.save(copy / "train" / path, np.zeros((10, 40), np.float32))
    lines[3] = f"{path}\t{label}\t10"
    (copy / "train" / "manifest.tsv").write_text("\n".join(lines) + "\n")
    (line,) = training(copy).notices
    assert f"1 of 30 utterances of fewer than 20 frames ({path})" in line


def test_features_of_another_size_are_refused(root: Path) -> None:
    with refused(root / "train/train-00000/0.npy", "40 values", "80"):
        SpeakerPairs(root, "train", 20, 80, train=True)
