"""Utterances from a manifest and from a Kaldi folder: listing, reading and reports of defects."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kaldiio
import numpy as np
import pytest

from gallery_lib.data.speech import feature_manifest
from gallery_lib.data.speech.feature_manifest import (
    check,
    list_utterances,
    load,
    shape,
    statistics,
    with_frames,
)
from gallery_lib.errors import InputError

COMMAND = [
    sys.executable,
    str(Path(__file__).resolve().parents[3] / "data_prep" / "check_features.py"),
]
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
    feature_manifest.write(
        folder, [(f"{name}.npy", SPEAKER[name], len(array)) for name, array in ARRAYS.items()]
    )
    return folder


def kaldi(folder: Path, **options: object) -> Path:
    """Return the same six utterances as a Kaldi folder."""
    folder.mkdir()
    kaldiio.save_ark(str(folder / "feats.ark"), ARRAYS, scp=str(folder / "feats.scp"), **options)
    (folder / "utt2spk").write_text(
        "".join(f"{name} {speaker}\n" for name, speaker in SPEAKER.items())
    )
    (folder / "text").write_text("".join(f"{name}\tthe words of {name}\n" for name in ARRAYS))
    return folder


def list_speakers(folder: Path) -> list[feature_manifest.Utterance]:
    return list_utterances(folder, "utt2spk", "make --it")


def test_a_manifest_lists_its_utterances_in_order_with_labels_frames_and_features(
    tsv: Path,
) -> None:
    utterances = list_speakers(tsv)
    assert [u.label for u in utterances] == list(SPEAKER.values())
    assert [u.frames for u in utterances] == [10, 11, 12, 13, 14, 15]
    for utterance, array in zip(utterances, ARRAYS.values(), strict=True):
        assert shape(utterance) == array.shape
        assert np.array_equal(load(utterance), array) and load(utterance).dtype == np.float32
    assert check(utterances, 4, full=True) == 4


def test_frames_that_are_not_listed_are_read_from_the_files(tsv: Path) -> None:
    lines = (tsv / "manifest.tsv").read_text().splitlines()
    (tsv / "manifest.tsv").write_text(
        "\r\n".join(line.rpartition("\t")[0] for line in lines) + "\r\n\r\n"
    )
    utterances = list_speakers(tsv)
    assert {u.frames for u in utterances} == {None}
    assert [u.frames for u in with_frames(utterances)] == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("compression", [None, 2, 3, 5])
def test_a_kaldi_folder_gives_the_same_utterances_also_compressed(
    tmp_path: Path, compression: int
) -> None:
    folder = kaldi(
        tmp_path / "kaldi", **({} if compression is None else {"compression_method": compression})
    )
    utterances = list_speakers(folder)
    assert [(u.name, u.label) for u in utterances] == list(SPEAKER.items())
    assert [u.frames for u in with_frames(utterances)] == [10, 11, 12, 13, 14, 15]
    for utterance, array in zip(utterances, ARRAYS.values(), strict=True):
        assert shape(utterance) == array.shape
        assert (
            np.allclose(load(utterance), array, atol=0.05 if compression else 0)
            and load(utterance).dtype == np.float32
        )


def test_labels_of_a_kaldi_folder_are_the_transcripts_where_these_are_asked_for(
    tmp_path: Path,
) -> None:
    folder = kaldi(tmp_path / "kaldi")
    assert list_utterances(folder, "text", "")[2].label == "the words of u2"
    (folder / "utt2num_frames").write_text(
        "".join(f"{name} {len(array)}\n" for name, array in ARRAYS.items())
    )
    assert list_utterances(folder, "text", "")[2].frames == 12


def test_archives_may_be_named_relative_to_the_folder_so_that_it_can_be_moved(
    tmp_path: Path,
) -> None:
    folder = kaldi(tmp_path / "kaldi")
    (folder / "feats.scp").write_text((folder / "feats.scp").read_text().replace(f"{folder}/", ""))
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    assert np.array_equal(load(list_speakers(moved)[5]), ARRAYS["u5"])


def test_statistics_are_those_of_the_frames(tsv: Path) -> None:
    frames = np.concatenate(list(ARRAYS.values()))
    mean, deviation = statistics(list_speakers(tsv))
    assert np.allclose(mean, frames.mean(0), atol=1e-6) and np.allclose(
        deviation, frames.std(0), atol=1e-6
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("u0.npy\ts0\n", "must begin with a line that names the columns path and label"),
        ("", "must begin with a line"),
        ("path\tlabel\n", "lists no utterances"),
        ("path\tlabel\nu0.npy s0\n", "line 2: 1 values for 2 columns"),
        ("path\tlabel\nu0.npy\t \n", "line 2: path and label must not be empty"),
        ("path\tlabel\tframes\nu0.npy\ts0\tten\n", "line 2: 'ten' is not a number of frames"),
    ],
)
def test_a_malformed_manifest_is_named_with_the_line(tsv: Path, lines: str, said: str) -> None:
    (tsv / "manifest.tsv").write_text(lines)
    with pytest.raises(InputError, match=f"{tsv}.*{said}"):
        list_speakers(tsv)


def test_a_folder_that_is_missing_or_holds_neither_layout_suggests_mock_data(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=r"none does not exist.*make --it"):
        list_speakers(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        InputError,
        match=r"neither manifest.tsv nor Kaldi's feats.scp.*It holds notes.txt.*make --it",
    ):
        list_speakers(tmp_path)


@pytest.mark.parametrize("entry", ["u0 cat feats.ark |", "u0 feats.ark", "u0 feats.ark:13[0:4]"])
def test_commands_and_ranges_in_an_scp_file_are_refused(tmp_path: Path, entry: str) -> None:
    folder = kaldi(tmp_path / "kaldi")
    (folder / "feats.scp").write_text(entry + "\n")
    with pytest.raises(InputError, match=r"line 1: .*is not `file.ark:offset`"):
        list_speakers(folder)


def test_kaldi_folders_without_labels_are_refused(tmp_path: Path) -> None:
    folder = kaldi(tmp_path / "kaldi")
    (folder / "utt2spk").write_text("u0 s0\n")
    with pytest.raises(InputError, match="no line for utterance u1"):
        list_speakers(folder)
    (folder / "utt2spk").unlink()
    with pytest.raises(InputError, match="no utt2spk"):
        list_speakers(folder)


def pickled(folder: Path) -> None:
    np.save(folder / "u3.npy", np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "u3.npy").unlink(), "No such file"),
        (lambda folder: (folder / "u3.npy").write_bytes(b"no array"), "u3.npy"),
        (
            lambda folder: np.save(folder / "u3.npy", np.zeros(7, np.float32)),
            r"holds an array \[7\]; it must be a matrix",
        ),
        (
            lambda folder: np.save(folder / "u3.npy", np.zeros((13, 5), np.float32)),
            "has 5 values a frame; it must have 4",
        ),
        (
            lambda folder: np.save(folder / "u3.npy", np.zeros((9, 4), np.float32)),
            "has 9 frames, and 13 are listed",
        ),
        (
            lambda folder: np.save(folder / "u3.npy", np.full((13, 4), np.nan, np.float32)),
            "not finite",
        ),
        (lambda folder: np.save(folder / "u3.npy", np.full((13, 4), "x")), "must be numbers"),
        (pickled, "u3.npy"),
    ],
)
def test_the_first_file_that_is_not_as_it_should_be_is_named(
    tsv: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(tsv)
    with pytest.raises(InputError, match=rf"u3\.npy(.|\n)*{said}" if said != "u3.npy" else said):
        check(list_speakers(tsv), 4)


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
        with pytest.raises(InputError, match=f"no binary Kaldi matrix at offset {offset}"):
            read(utterance)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(folder), *arguments], capture_output=True, text=True, timeout=60
    )


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

    for arguments, said in (
        ((root, "--task", "tts_angular"), "has 4 values a frame; it must have 40"),
        (
            (kaldi_root, "--task", "tts_angular", "--dims", "4"),
            "3 speakers are both in train/ and in val/",
        ),
        (
            (tmp_path / "none", "--task", "speech_transformer"),
            "Mock data, in a folder of its own: python3 data_prep/mock_speech.py",
        ),
    ):
        bad = run(*arguments)
        assert bad.returncode == 2 and said in bad.stderr and "Traceback" not in bad.stderr
    lines = (root / "val" / "manifest.tsv").read_text().splitlines(keepends=True)
    (root / "val" / "manifest.tsv").write_text("".join(lines[:-1]))
    single = run(root, "--task", "tts_angular", "--dims", "4")
    assert (
        single.returncode == 2
        and "1 of 3 speakers in" in single.stderr
        and "t2 has 1" in single.stderr
    )


@pytest.mark.parametrize("kind", ["npy", "ark", "compressed ark"])
def test_a_truncated_file_is_found_by_its_header(tmp_path: Path, kind: str) -> None:
    if kind == "npy":
        np.save(tmp_path / "u.npy", ARRAYS["u5"])
        utterance = feature_manifest.Utterance("u", "s", tmp_path / "u.npy")
    else:
        options = {"compression_method": 2} if kind == "compressed ark" else {}
        utterance = list_speakers(kaldi(tmp_path / "kaldi", **options))[-1]
    assert shape(utterance) == ARRAYS["u5"].shape
    data = utterance.path.read_bytes()
    utterance.path.write_bytes(data[:-3])
    with pytest.raises(InputError, match=f"it is truncated: {len(data) - 3} of {len(data)} bytes"):
        shape(utterance)


def test_a_matrix_without_frames_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "u.npy", np.zeros((0, 4), np.float32))
    with pytest.raises(InputError, match=r"holds an array \[0, 4\]; it must be a matrix"):
        with_frames([feature_manifest.Utterance("u", "s", tmp_path / "u.npy")])


def test_the_check_names_a_pipe_instead_of_waiting_for_it(tsv: Path) -> None:
    (tsv / "u3.npy").unlink()
    os.mkfifo(tsv / "u3.npy")
    (tsv.parent / "train").symlink_to(tsv)
    (tsv.parent / "val").symlink_to(tsv)
    result = subprocess.run(
        [*COMMAND, str(tsv.parent), "--task", "tts_angular", "--dims", "4"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2 and "lists 1 feature file(s) that do not exist" in result.stderr
