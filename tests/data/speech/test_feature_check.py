"""The check of a speech folder counts and names what training would leave out or refuse."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from data_command import DATA_PREP, run_data_command
from refusal import refused

from gallery_lib.data.speech.check import check_features
from gallery_lib.data.speech.features import list_utterances, load
from gallery_lib.data.speech.utterances import SpeechFolder, stacked_length
from gallery_lib.tasks import speech_transformer

# What is left out


def test_utterances_that_are_too_long_and_unknown_characters_are_counted_and_named(
    copy: Path,
) -> None:
    train = SpeechFolder(copy / "train", 160, 100)
    assert train.notices == ()
    (copy / "train" / "alignment.tsv").unlink(missing_ok=True)
    lengths = sorted(
        stacked_length(len(load(u))) for u in list_utterances(copy / "train", "text", "")
    )
    short = SpeechFolder(copy / "train", lengths[-1] // 2 - 1, 100)
    (line,) = short.notices
    left = sum(length > 2 * (lengths[-1] // 2 - 1) for length in lengths)
    assert f"{left} of 24 utterances of more than" in line and 0 < left < 24
    manifest = copy / "val" / "manifest.tsv"
    lines = manifest.read_text().splitlines()
    path, label, frames = lines[1].split("\t")
    manifest.write_text("\n".join([lines[0], f"{path}\t{label}§§\t{frames}", *lines[2:]]) + "\n")
    (line,) = SpeechFolder(copy / "val", 160, 100, train).notices
    assert line.startswith("2 of ") and line.endswith("are not in train/, and count as unknown: §")
    checked = run_data_command("check_features", copy, "--task", "speech_transformer")
    assert checked.returncode == 0 and line in checked.stdout


def test_the_check_refuses_more_characters_than_the_model_has_tokens(copy: Path) -> None:
    assert check_features(copy, "text", 80, "", vocabulary_size=100).notices == ()
    with refused("data_dir", "room for 2"):
        check_features(copy, "text", 80, "", vocabulary_size=5)


def test_the_check_knows_the_model_s_tokens() -> None:
    spec = importlib.util.spec_from_file_location("check_features", DATA_PREP / "check_features.py")
    assert spec and spec.loader
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    assert command.TASKS["speech_transformer"][3] == speech_transformer.VOCABULARY
