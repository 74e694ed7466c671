"""Commands that make mock data: what they print, where they write, and their exit codes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from data_command import run_data_command
from refusal import check_refused_command

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
