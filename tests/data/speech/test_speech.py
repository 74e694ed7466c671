"""Utterances and their batches, mock speech, vocabularies, and reports on unusable folders."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import kaldiio
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gallery_lib.data.speech import mock_speech
from gallery_lib.data.speech.characters import BEGIN, END, UNKNOWN, Characters, tidy
from gallery_lib.data.speech.feature_check import check_features
from gallery_lib.data.speech.feature_manifest import list_utterances, load
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate, language, utterance
from gallery_lib.data.speech.utterances import (
    IGNORED,
    SpeechBatch,
    SpeechFolder,
    collate,
    stack_frames,
    stacked_length,
)
from gallery_lib.errors import InputError
from gallery_lib.tasks import speech_transformer

TINY = SpeechSpec(characters=12, words=10, train=24, val=8)
COMMAND = [
    sys.executable,
    str(Path(__file__).resolve().parents[3] / "data_prep" / "mock_speech.py"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return mock speech of spec TINY, which must not be changed."""
    path = tmp_path_factory.mktemp("data") / "speech"
    generate(path, TINY)
    return path


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the mock speech, to be damaged."""
    return Path(shutil.copytree(root, tmp_path / "copy"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
    listed = list_utterances(root / "train", "text", "")[5]
    assert data.characters.decode(characters.tolist()) == listed.label
    assert (features.dtype, features.shape) == (
        torch.float32,
        (stacked_length(len(load(listed))), 320),
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


def test_workers_give_the_same_batches(root: Path) -> None:
    data = SpeechFolder(root / "train", 40, 100)
    here, there = (
        list(DataLoader(data, 4, num_workers=n, collate_fn=data.collate)) for n in (0, 1)
    )
    assert isinstance(there[0], SpeechBatch) and len(here) == len(there)
    assert all(
        torch.equal(a, b)
        for x, y in zip(here, there, strict=True)
        for a, b in zip(x, y, strict=True)
    )


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


def test_without_an_alignment_long_utterances_are_left_out(copy: Path) -> None:
    (copy / "train" / "alignment.tsv").unlink()
    every = SpeechFolder(copy / "train", 1000, 100)
    median = int(np.median(every.lengths))
    some = SpeechFolder(copy / "train", median // 2, 100)
    assert 0 < len(some) < len(every) and max(some.lengths) <= 2 * (median // 2)
    assert some.characters.characters == every.characters.characters
    with pytest.raises(InputError, match=rf"sequence_length=8.*shortest has {min(every.lengths)}"):
        SpeechFolder(copy / "train", 8, 100)


def test_an_alignment_that_does_not_fit_is_refused_with_its_place(copy: Path) -> None:
    file = copy / "train" / "alignment.tsv"
    lines = file.read_text().splitlines()
    name = lines[1].split("\t")[0]
    file.write_text("\n".join([lines[0], f"{name}\t2:50 1:60", *lines[2:]]))
    with pytest.raises(InputError, match=f"alignment.tsv: the cuts of {name} must ascend"):
        SpeechFolder(copy / "train", 16, 100)
    file.write_text("\n".join([lines[0], f"{name}\ttwo", *lines[2:]]))
    with pytest.raises(InputError, match=r"alignment\.tsv, line 2"):
        SpeechFolder(copy / "train", 16, 100)


# Characters


def test_characters_are_numbered_by_frequency_and_others_are_unknown() -> None:
    characters = Characters.of(["abba", "cab"], 10, "here")
    assert characters.characters == ["a", "b", "c"] and len(characters) == 6
    assert characters.encode("cabx") == [5, 3, 4, UNKNOWN]
    assert characters.decode([5, 3, 4, END, 3]) == "cab"
    assert characters.decode([3, UNKNOWN, BEGIN, 99]) == "a\ufffd\ufffd\ufffd"


def test_more_characters_than_the_model_has_room_for_are_refused() -> None:
    assert len(Characters.of(["abc"], 6, "here")) == 6
    with pytest.raises(
        InputError, match="here have 4 different characters, and the model has room for 3"
    ):
        Characters.of(["abcd"], 6, "here")


def test_spaces_stay_except_between_ideographs() -> None:
    assert tidy("  two   words ") == "two words"
    assert tidy("今天 天气 好 OK  now") == "今天天气好 OK now"
    assert tidy("cafe\u0301") == "café"


def test_held_out_data_takes_vocabulary_and_scale_from_the_training_data(root: Path) -> None:
    train = SpeechFolder(root / "train", 160, 100)
    held_out = SpeechFolder(root / "val", 160, 100, train)
    assert (
        held_out.characters is train.characters
        and held_out.mean is train.mean
        and held_out.deviation is train.deviation
    )


# Real data


def test_a_kaldi_folder_gives_the_same_items(root: Path, tmp_path: Path) -> None:
    utterances = list_utterances(root / "train", "text", "")
    with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/feats.ark,{tmp_path}/feats.scp") as writer:
        for number, u in enumerate(utterances):
            writer(f"utt{number:03d}", load(u))
    (tmp_path / "text").write_text(
        "".join(f"utt{n:03d} {u.label}\n" for n, u in enumerate(utterances)), encoding="utf-8"
    )
    plain, kaldi = SpeechFolder(root / "train", 160, 100), SpeechFolder(tmp_path, 160, 100)
    assert kaldi.lengths == plain.lengths
    for index in (0, 7, 23):
        assert all(torch.equal(a, b) for a, b in zip(plain[index], kaldi[index], strict=True))


def test_a_missing_feature_file_is_named_before_anything_is_read(copy: Path) -> None:
    (copy / "train" / "000003.npy").unlink()
    with pytest.raises(
        InputError, match=r"1 feature file\(s\) that do not exist, the first being .*000003\.npy"
    ):
        SpeechFolder(copy / "train", 160, 100)


def test_other_features_than_80_filter_banks_are_refused(copy: Path) -> None:
    np.save(copy / "train" / "000000.npy", np.zeros((200, 40), np.float32))
    with pytest.raises(InputError, match=r"000000\.npy has 40 values a frame.*80"):
        SpeechFolder(copy / "train", 160, 100)


def test_a_truncated_file_is_named_when_its_item_is_read(copy: Path) -> None:
    data = SpeechFolder(copy / "train", 160, 100)
    file = copy / "train" / "000004.npy"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"000004\.npy"):
        data[4]


# Mock speech


def test_an_utterance_depends_on_seed_split_and_index_alone() -> None:
    more = SpeechSpec(characters=12, words=10, train=99, val=50)
    a, b = (utterance(spec, language(spec), "train", 7) for spec in (TINY, more))
    assert np.array_equal(a[0], b[0]) and a[1:] == b[1:]
    others = [
        utterance(TINY, language(TINY), "val", 7),
        utterance(TINY, language(TINY), "train", 8),
        utterance(
            SpeechSpec(characters=12, words=10, train=24, val=8, seed=1), language(TINY), "train", 7
        ),
    ]
    assert all(not np.array_equal(a[0], other[0]) for other in others)


def test_lengths_are_those_of_short_sentences() -> None:
    spoken = language(SpeechSpec())
    made = [utterance(SpeechSpec(), spoken, "train", index) for index in range(60)]
    stacked = [stacked_length(len(features)) for features, _, _ in made]
    assert 145 < np.mean(stacked) < 175 and np.std(stacked) > 20
    assert 13 < np.mean([len(text) for _, text, _ in made]) < 17
    assert {features.dtype for features, _, _ in made} == {np.dtype(np.float16)}


def test_words_can_be_told_from_their_sound() -> None:
    spec = SpeechSpec(characters=12, words=10)
    spoken = language(spec)

    def words(split: str) -> list[tuple[str, np.ndarray]]:
        found = []
        for index in range(30):
            features, text, cuts = utterance(spec, spoken, split, index)
            places = [(0, 0), *cuts, (len(text), len(features))]
            for (c, f), (d, g) in pairwise(places):
                parts = np.array_split(features[f:g].astype(np.float32), 4)
                found.append((text[c:d], np.concatenate([part.mean(0) for part in parts])))
        return found

    training = words("train")
    names = sorted({name for name, _ in training})
    means = np.stack(
        [np.mean([sound for name, sound in training if name == which], axis=0) for which in names]
    )
    tested = words("val")
    right = sum(
        names[int(((means - sound) ** 2).sum(1).argmin())] == name for name, sound in tested
    )
    assert right / len(tested) > 0.9


def test_a_large_language_has_as_many_characters_as_asked() -> None:
    letters = language(SpeechSpec(characters=4230, words=10)).letters
    assert len(set(letters)) == 4230 and all(tidy(letter) == letter for letter in letters)


def test_the_same_spec_makes_the_same_bytes_and_a_second_call_makes_nothing(
    root: Path, tmp_path: Path
) -> None:
    assert generate(tmp_path / "again", TINY).now
    before = files_of(tmp_path / "again")
    assert before == files_of(root)
    second = generate(tmp_path / "again", TINY)
    assert not second.now and second.seconds < 0.5
    assert files_of(tmp_path / "again") == before


def test_another_spec_or_other_content_is_refused_untouched(root: Path, tmp_path: Path) -> None:
    before = files_of(root)
    with pytest.raises(InputError, match="other mock data"):
        generate(root, SpeechSpec(characters=12, words=10, train=24, val=8, seed=1))
    assert files_of(root) == before
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not empty"):
        generate(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_interrupted_generation_leaves_nothing_and_leftovers_of_a_killed_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mock_speech, "write_alignment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "speech", TINY)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".speech.partial" / "train").mkdir(parents=True)
    (tmp_path / ".speech.partial" / "train" / "extra.npy").write_bytes(b"x")
    generate(tmp_path / "speech", TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["speech"] and not list(
        tmp_path.rglob("extra.npy")
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("characters", 1),
        ("characters", 4231),
        ("words", 0),
        ("train", 0),
        ("val", -1),
        ("seed", -1),
    ],
)
def test_an_impossible_spec_names_the_field_and_the_value(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{field} is {value}"):
        SpeechSpec(**{field: value})


def test_the_command_makes_reports_and_refuses_with_its_exit_codes(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"GALLERY_CACHE_DIR": str(tmp_path / "cache")}
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    sizes = ["--characters", "12", "--words", "10", "--train", "4", "--val", "2"]
    made = run(*sizes)
    folder = tmp_path / "cache" / "data" / "speech-small"
    assert made.returncode == 0 and "10 files, made now" in made.stdout
    assert json.loads((folder / "made.json").read_text())["made"]["spec"]["train"] == 4
    assert "complete already" in run(*sizes).stdout
    refused = run("--characters", "1")
    assert (
        refused.returncode == 2
        and "characters is 1" in refused.stderr
        and "Traceback" not in refused.stderr
    )
    other = run("--seed", "5")
    assert other.returncode == 2 and "other mock data" in other.stderr


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
    command = [
        sys.executable,
        str(Path(COMMAND[1]).with_name("check_features.py")),
        str(copy),
        "--task",
        "speech_transformer",
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and line in checked.stdout


def test_the_check_refuses_more_characters_than_the_model_has_tokens(copy: Path) -> None:
    assert check_features(copy, "text", 80, "", vocabulary_size=100).notices == ()
    with pytest.raises(InputError, match="different characters, and the model has room for 2"):
        check_features(copy, "text", 80, "", vocabulary_size=5)


def test_the_check_knows_the_model_s_tokens() -> None:
    spec = importlib.util.spec_from_file_location(
        "check_features", Path(COMMAND[1]).with_name("check_features.py")
    )
    assert spec and spec.loader
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    assert command.TASKS["speech_transformer"][3] == speech_transformer.VOCABULARY
