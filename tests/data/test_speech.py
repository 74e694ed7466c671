"""Speech: mock utterances, manifests and what is unfit in them, items and batches."""

from __future__ import annotations

import os
import runpy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from data_command import DATA_PREP, run_data_command
from refusal import check_refused_command, refused

from gallery_lib.data.speech import features
from gallery_lib.data.speech.characters import BEGIN, END, UNKNOWN, Characters, tidy
from gallery_lib.data.speech.features import check_features, list_utterances, load, statistics
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate, language, utterance
from gallery_lib.data.speech.utterances import (
    IGNORED,
    SpeechFolder,
    collate,
    stack_frames,
    stacked_length,
)
from gallery_lib.tasks import speech_transformer

TINY = SpeechSpec(characters=12, words=10, train=24, val=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return mock speech of spec TINY, which must not be changed."""
    path = tmp_path_factory.mktemp("data") / "speech"
    generate(path, TINY)
    return path


def test_lengths_are_those_of_short_sentences() -> None:
    spoken = language(SpeechSpec())
    made = [utterance(SpeechSpec(), spoken, "train", index) for index in range(60)]
    stacked = [stacked_length(len(features)) for features, _, _ in made]
    assert 145 < np.mean(stacked) < 175 and np.std(stacked) > 20
    assert 13 < np.mean([len(text) for _, text, _ in made]) < 17
    assert {features.dtype for features, _, _ in made} == {np.dtype(np.float16)}


def test_a_large_language_has_as_many_characters_as_asked() -> None:
    letters = language(SpeechSpec(characters=4230, words=10)).letters
    assert len(set(letters)) == 4230 and all(tidy(letter) == letter for letter in letters)


ARRAYS = {
    f"u{i}": np.random.default_rng(i).normal(size=(10 + i, 4)).astype(np.float32) for i in range(6)
}
SPEAKER = {name: f"s{i // 2}" for i, name in enumerate(ARRAYS)}


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    """Return a folder of six utterances of three speakers as .npy files with a manifest."""
    folder = tmp_path / "tsv"
    folder.mkdir()
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    rows = [(f"{name}.npy", SPEAKER[name], len(array)) for name, array in ARRAYS.items()]
    features.write(folder, rows)
    return folder


def test_a_manifest_lists_its_utterances_in_order_with_labels_frames_and_features(
    tsv: Path,
) -> None:
    listed = list_utterances(tsv, "")
    # Frames that are not listed are read from the files.
    lines = (tsv / "manifest.tsv").read_text().splitlines()
    (tsv / "manifest.tsv").write_text(
        "\r\n".join(line.rpartition("\t")[0] for line in lines) + "\r\n\r\n"
    )
    for utterances in (listed, list_utterances(tsv, "")):
        assert [u.label for u in utterances] == list(SPEAKER.values())
        assert [u.frames for u in utterances] == [10, 11, 12, 13, 14, 15]
        for one, array in zip(utterances, ARRAYS.values(), strict=True):
            found = load(one, 4)
            assert np.array_equal(found, array) and found.dtype == np.float32


def test_statistics_are_those_of_the_frames(tsv: Path) -> None:
    frames = np.concatenate(list(ARRAYS.values()))
    found = statistics(list_utterances(tsv, ""), 4)
    assert np.allclose(found, (frames.mean(0), frames.std(0)), atol=1e-6)


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        ("u0.npy\ts0\n", ["columns path and label", "['u0.npy', 's0']"]),
        ("", ["columns path and label", "[]"]),
        ("path\tlabel\nu0.npy s0\n", ["line 2", "1 values", "2 columns"]),
        ("path\tlabel\nu0.npy\t \n", ["line 2", "empty"]),
        ("path\tlabel\tframes\nu0.npy\ts0\tten\n", ["line 2", "'ten'", "frames"]),
        ("path\tlabel\nnone.npy\ts0\n", ["line 2", "none.npy is no file"]),
    ],
)
def test_a_malformed_manifest_is_named_with_the_line(
    tsv: Path, lines: str, values: list[str]
) -> None:
    (tsv / "manifest.tsv").write_text(lines)
    with refused(tsv / "manifest.tsv", *values):
        list_utterances(tsv, "")


def test_a_folder_without_a_manifest_of_utterances_suggests_mock_data(tmp_path: Path) -> None:
    for name, words in (
        (None, [tmp_path / "data", "make --it"]),
        ("notes.txt", ["manifest.tsv", "notes.txt", "make --it"]),
        ("manifest.tsv", [tmp_path / "data", "no utterances"]),
    ):
        if name:
            (tmp_path / "data").mkdir(exist_ok=True)
            (tmp_path / "data" / name).write_text("path\tlabel\n")
        with refused("data_dir", *words):
            list_utterances(tmp_path / "data", "make --it")


run = partial(run_data_command, "check_features")


@pytest.mark.parametrize(
    ("damage", "values"),
    [
        (lambda path: path.write_bytes(b"no array"), []),
        (lambda path: os.truncate(path, path.stat().st_size - 3), ["greater than file"]),
        (lambda path: np.save(path, np.zeros(7, np.float32)), ["[7]", "[frames, dims]"]),
        (lambda path: np.save(path, np.zeros((13, 5), np.float32)), ["5 values", "4"]),
        (lambda path: np.save(path, np.zeros((9, 4), np.float32)), ["9 frames", "13"]),
        (lambda path: np.save(path, np.full((13, 4), np.nan, np.float32)), ["not finite"]),
        (lambda path: np.save(path, np.full((13, 4), "x")), ["<U1 [13, 4]"]),
        (lambda path: np.save(path, np.array([{}], dtype=object)), []),  # a pickle
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_named(
    tsv: Path, damage: Callable[[Path], object], values: list[str]
) -> None:
    damage(tsv / "u3.npy")
    with refused(tsv / "u3.npy", *values):
        load(list_utterances(tsv, "")[3], 4)


def test_all_faults_are_named_in_one_run_and_twenty_at_most_in_words(copy: Path) -> None:
    manifest = copy / "train" / "manifest.tsv"
    lines = manifest.read_text().splitlines()
    names = [line.split("\t")[0] for line in lines[1:]]
    for name in names:
        np.save(copy / "train" / name, np.zeros((80, 13), np.float32))
    first = copy / "val" / (copy / "val" / "manifest.tsv").read_text().split()[3]
    np.save(first, np.full_like(np.load(first), np.nan))
    bad = run(copy, "--task", "speech_transformer", "--full")
    assert bad.returncode == 2 and f"{len(names) + 1} faults were found" in bad.stderr
    assert "It seems transposed: it must be [frames, values]." in bad.stderr
    assert f"… and {len(names) + 1 - 20} more" in bad.stderr
    first.unlink()
    os.mkfifo(first)  # named instead of waited for
    manifest.write_text("\n".join([lines[0], "one", lines[1], "two"]))
    bad = run(copy, "--task", "speech_transformer")
    words = ("line 2: 1 values", "line 4: 1 val", f"{first.name} is no file")
    check_refused_command(bad.returncode, bad.stderr, *words)


def test_the_command_ends_with_0_or_2_and_one_message(tsv: Path, tmp_path: Path) -> None:
    root, common = tmp_path / "root", tmp_path / "common"
    common.mkdir()
    for split, rename in (("train", "s"), ("val", "t")):
        shutil.copytree(tsv, root / split)
        manifest = root / split / "manifest.tsv"
        manifest.write_text(manifest.read_text().replace("\ts", f"\t{rename}"))
        (common / split).symlink_to(tsv)
    good = run(root, "--task", "tts_angular", "--dims", "4", "--full")
    assert (good.returncode, good.stderr) == (0, "")
    assert "val: 6 utterances, 3 different labels, 75 frames; 4 values a frame" in good.stdout
    assert run(root, "--task", "speech_transformer", "--dims", "4").returncode == 0
    for arguments, values in (
        ((root, "--task", "tts_angular"), ["4 values a frame", 40]),
        ((common, "--task", "tts_angular", "--dims", "4"), ["3 speakers", "train/", "val/"]),
        (
            (tmp_path / "none", "--task", "speech_transformer"),
            [tmp_path / "none", "python3 data_prep/mock_speech.py"],
        ),
    ):
        bad = run(*arguments)
        check_refused_command(bad.returncode, bad.stderr, *values)
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:-1]))
    single = run(root, "--task", "tts_angular", "--dims", "4")
    check_refused_command(single.returncode, single.stderr, "1 of 3 speakers", "t2 has 1")


def test_utterances_that_are_too_long_and_unknown_characters_are_counted_and_named(
    copy: Path,
) -> None:
    train = SpeechFolder(copy / "train", 160, 100)
    assert train.notices == ()
    (copy / "train" / "alignment.tsv").unlink()
    lengths = sorted(stacked_length(u.frames) for u in list_utterances(copy / "train", ""))
    (line,) = SpeechFolder(copy / "train", lengths[-1] // 2 - 1, 100).notices
    left = sum(length > 2 * (lengths[-1] // 2 - 1) for length in lengths)
    assert f"{left} of 24 utterances of more than" in line and 0 < left < 24
    with refused("sequence_length", 8, f"shortest has {lengths[0]}"):
        SpeechFolder(copy / "train", 8, 100)
    manifest = copy / "val" / "manifest.tsv"
    lines = manifest.read_text().splitlines()
    path, label, frames = lines[1].split("\t")
    manifest.write_text("\n".join([lines[0], f"{path}\t{label}§§\t{frames}", *lines[2:]]) + "\n")
    (line,) = SpeechFolder(copy / "val", 160, 100, train).notices
    assert line.startswith("2 of ") and line.endswith("are not in train/, and count as unknown: §")
    checked = run(copy, "--task", "speech_transformer")
    assert checked.returncode == 0 and line in checked.stdout


def test_the_check_refuses_more_characters_than_the_model_has_tokens(root: Path) -> None:
    with refused("data_dir", "room for 2"):
        check_features(root, 80, "", vocabulary_size=5)
    command = runpy.run_path(str(DATA_PREP / "check_features.py"))
    assert command["TASKS"]["speech_transformer"][2] == speech_transformer.VOCABULARY


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


def test_characters_are_numbered_by_frequency_and_others_are_unknown() -> None:
    characters = Characters.of(["abba", "cab"], 10, "here")
    assert characters.characters == ["a", "b", "c"] and len(characters) == 6
    assert characters.encode("cabx") == [5, 3, 4, UNKNOWN]
    assert characters.decode([5, 3, 4, END, 3]) == "cab"
    assert characters.decode([3, UNKNOWN, BEGIN, 99]) == "a\ufffd\ufffd\ufffd"
    assert len(Characters.of(["abc"], 6, "here")) == 6  # which is full


def test_spaces_stay_except_between_ideographs() -> None:
    assert tidy("  two   words ") == "two words"
    assert tidy("今天 天气 好 OK  now") == "今天天气好 OK now"
    assert tidy("cafe\u0301") == "café"


def test_held_out_data_takes_vocabulary_and_scale_from_the_training_data(root: Path) -> None:
    train = SpeechFolder(root / "train", 160, 100)
    held_out = SpeechFolder(root / "val", 160, 100, train)
    for name in ("characters", "mean", "deviation"):
        assert getattr(held_out, name) is getattr(train, name)
