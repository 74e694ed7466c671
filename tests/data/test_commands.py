"""Mock data: what its items depend on, and the commands that make it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data_command import run_data_command
from refusal import check_refused_command

from gallery_lib.data.images import mock_imagenet, mock_segmentation
from gallery_lib.data.speech import mock_speakers, mock_speech

# name: options, folder in the cache, files, an option out of range
COMMANDS: dict[str, tuple[str, str, int, str]] = {
    "mock_imagenet": (
        "--classes 2 --train-per-class 3 --val-per-class 1",
        "imagenet-small",
        8,
        "--classes 1",
    ),
    "mock_segmentation": ("--train 2 --val 1", "segmentation-small", 6, "--train 0"),
    "mock_speech": (
        "--characters 12 --words 10 --train 4 --val 2",
        "speech-small",
        10,
        "--characters 1",
    ),
    "mock_speakers": (
        "--train 2 --val 2 --utterances 2",
        "speakers-small",
        10,
        "--utterances 1",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_makes_data_once_and_refuses_with_its_exit_codes(
    name: str, tmp_path: Path
) -> None:
    options, folder, files, impossible = COMMANDS[name]
    run = partial(run_data_command, name, cache=tmp_path, folder=tmp_path)
    root = tmp_path / "data" / folder
    made, again = (run(*options.split()) for _ in "ab")
    assert made.returncode == 0 and f"{root}: {files} files, made now" in made.stdout
    assert again.returncode == 0 and "complete already" in again.stdout
    other = run(*options.split(), "--seed", 1)
    check_refused_command(other.returncode, other.stderr, root, "'seed': 0", "'seed': 1")
    field, value = impossible.removeprefix("--").split()
    refused = run(*impossible.split(), "--out", tmp_path / "none")
    check_refused_command(refused.returncode, refused.stderr, f"{field}={value!r}")
    assert not (tmp_path / "none").exists()


def spoken(seed: int, split: str, index: int, train: int = 20) -> np.ndarray:
    spec = mock_speech.SpeechSpec(characters=12, words=10, train=train, seed=seed)
    return mock_speech.utterance(spec, mock_speech.language(spec), split, index)[0]


ITEMS = {
    "images": lambda seed, *key: mock_imagenet.render(mock_imagenet.MockSpec(seed=seed), *key),
    "masks": lambda *key: mock_segmentation.render(*key)[1],
    "speakers": lambda *key: mock_speakers.features(*key, 1)[:120],
    "speech": spoken,
}


@pytest.mark.parametrize("kind", ITEMS)
def test_an_item_depends_on_seed_split_and_index_alone(kind: str) -> None:
    item = ITEMS[kind]
    first = item(0, "train", 7)
    assert np.array_equal(first, item(0, "train", 7))
    for other in ((1, "train", 7), (0, "val", 7), (0, "train", 8)):
        assert not np.array_equal(first, item(*other))
    assert np.array_equal(spoken(0, "train", 7), spoken(0, "train", 7, train=99))
