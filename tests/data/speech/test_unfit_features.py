"""Feature files that are not as they should be: their reports, and those of the command."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data.speech.feature_folders import ARRAYS, kaldi, list_speakers
from data_command import run_data_command
from refusal import check_refused_command, refused

from gallery_lib.data.speech import features
from gallery_lib.data.speech.features import load, shape, with_frames
from gallery_lib.data.speech.utterances import SpeechFolder

run = partial(run_data_command, "check_features")


def pickled(folder: Path) -> None:
    np.save(folder / "u3.npy", np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "values"),
    [
        (lambda folder: (folder / "u3.npy").unlink(), ["No such file"]),
        (lambda folder: (folder / "u3.npy").write_bytes(b"no array"), []),
        (
            lambda folder: np.save(folder / "u3.npy", np.zeros(7, np.float32)),
            ["[7]", "[frames, dims]"],
        ),
        (
            lambda folder: np.save(folder / "u3.npy", np.zeros((13, 5), np.float32)),
            ["5 values", "4"],
        ),
        (
            lambda folder: np.save(folder / "u3.npy", np.zeros((9, 4), np.float32)),
            ["9 frames", "13"],
        ),
        (
            lambda folder: np.save(folder / "u3.npy", np.full((13, 4), np.nan, np.float32)),
            ["not finite"],
        ),
        (lambda folder: np.save(folder / "u3.npy", np.full((13, 4), "x")), ["<U1 [13, 4]"]),
        (pickled, []),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_named(
    tsv: Path, damage: Callable[[Path], object], values: list[str]
) -> None:
    damage(tsv)
    with refused(tsv / "u3.npy", *values):
        load(list_speakers(tsv)[3], 4)


def test_all_faults_are_named_in_one_run_and_twenty_at_most_in_words(copy: Path) -> None:
    lines = (copy / "train" / "manifest.tsv").read_text().splitlines()
    names = [line.split("\t")[0] for line in lines[1:]]
    for name in names[2:]:
        np.save(copy / "train" / name, np.zeros((80, 13), np.float32))
    (copy / "train" / names[0]).unlink()
    first = copy / "val" / (copy / "val" / "manifest.tsv").read_text().split()[3]
    np.save(first, np.full_like(np.load(first), np.nan))
    bad = run(copy, "--task", "speech_transformer", "--full")
    assert bad.returncode == 2 and "1 feature file(s) that do not exist" in bad.stderr
    assert f"{len(names)} faults were found" in bad.stderr  # one is fine, and one is in val/
    assert "It seems transposed: it must be [frames, values]." in bad.stderr
    assert f"… and {len(names) - 20} more" in bad.stderr
    (copy / "train" / "manifest.tsv").write_text("\n".join([lines[0], "one", lines[1], "two"]))
    bad = run(copy, "--task", "speech_transformer")
    assert bad.returncode == 2
    assert all(word in bad.stderr for word in ("line 2: 1 values", "line 4: 1 val", "not finite"))


def test_training_names_the_utterance_that_is_transposed(copy: Path) -> None:
    name = (copy / "train" / "manifest.tsv").read_text().splitlines()[2].split("\t")[0]
    np.save(copy / "train" / name, np.load(copy / "train" / name).T)
    with refused(copy / "train" / name, name, "transposed"):
        SpeechFolder(copy / "train", 160, 100)


def test_an_offset_that_is_no_matrix_is_refused_instead_of_read_as_something_else(
    tmp_path: Path,
) -> None:
    folder = kaldi(tmp_path / "kaldi")
    with (folder / "feats.ark").open("ab") as archive:
        offset = archive.tell()
        archive.write(b"PKL" + pickle.dumps({}))
    (folder / "feats.scp").write_text(f"u0 {folder}/feats.ark:{offset}\n")
    (utterance,) = list_speakers(folder)
    for read in (shape, load):
        with refused(folder / "feats.ark", f"offset {offset}"):
            read(utterance)


def test_the_command_ends_with_0_or_2_and_one_message(tsv: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    kaldi_root = tmp_path / "kaldi"
    kaldi_root.mkdir()
    for split, rename in (("train", "s"), ("val", "t")):
        shutil.copytree(tsv, root / split)
        (root / split / "manifest.tsv").write_text(
            (tsv / "manifest.tsv").read_text().replace("\ts", f"\t{rename}")
        )
        kaldi(kaldi_root / split)
    good = run(root, "--task", "tts_angular", "--dims", "4", "--full")
    assert (good.returncode, good.stderr) == (
        0,
        "",
    ) and "val: 6 utterances, 3 different labels, 75 frames; 4 values a frame" in good.stdout
    assert run(kaldi_root, "--task", "speech_transformer", "--dims", "4").returncode == 0

    for arguments, values in (
        ((root, "--task", "tts_angular"), ["4 values a frame", 40]),
        ((kaldi_root, "--task", "tts_angular", "--dims", "4"), ["3 speakers", "train/", "val/"]),
        (
            (tmp_path / "none", "--task", "speech_transformer"),
            [tmp_path / "none", "python3 data_prep/mock_speech.py"],
        ),
    ):
        bad = run(*arguments)
        check_refused_command(bad.returncode, bad.stderr, *values)
    lines = (root / "val" / "manifest.tsv").read_text().splitlines(keepends=True)
    (root / "val" / "manifest.tsv").write_text("".join(lines[:-1]))
    single = run(root, "--task", "tts_angular", "--dims", "4")
    check_refused_command(single.returncode, single.stderr, "1 of 3 speakers", "t2 has 1")


@pytest.mark.parametrize("kind", ["npy", "ark", "compressed ark"])
def test_a_truncated_file_is_found_by_its_header(tmp_path: Path, kind: str) -> None:
    if kind == "npy":
        np.save(tmp_path / "u.npy", ARRAYS["u5"])
        utterance = features.Utterance("u", "s", tmp_path / "u.npy")
    else:
        options = {"compression_method": 2} if kind == "compressed ark" else {}
        utterance = list_speakers(kaldi(tmp_path / "kaldi", **options))[-1]
    assert shape(utterance) == ARRAYS["u5"].shape
    data = utterance.path.read_bytes()
    utterance.path.write_bytes(data[:-3])
    with refused(utterance.path, f"{len(data) - 3} of {len(data)} bytes"):
        shape(utterance)


def test_a_matrix_without_frames_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "u.npy", np.zeros((0, 4), np.float32))
    with refused(tmp_path / "u.npy", "[0, 4]"):
        with_frames([features.Utterance("u", "s", tmp_path / "u.npy")])


def test_the_check_names_a_pipe_instead_of_waiting_for_it(tsv: Path) -> None:
    (tsv / "u3.npy").unlink()
    os.mkfifo(tsv / "u3.npy")
    (tsv.parent / "train").symlink_to(tsv)
    (tsv.parent / "val").symlink_to(tsv)
    result = run(tsv.parent, "--task", "tts_angular", "--dims", "4")
    check_refused_command(result.returncode, result.stderr, "1 feature file", "u3.npy")
