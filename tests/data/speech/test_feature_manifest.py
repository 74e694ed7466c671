"""Utterances from a manifest and from a Kaldi folder: listing, reading and reports of defects."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from data.speech.feature_folders import ARRAYS, SPEAKER, kaldi, list_speakers
from refusal import refused

from gallery_lib.data.speech.features import (
    list_utterances,
    load,
    shape,
    statistics,
    with_frames,
)


def test_a_manifest_lists_its_utterances_in_order_with_labels_frames_and_features(
    tsv: Path,
) -> None:
    utterances = list_speakers(tsv)
    assert [u.label for u in utterances] == list(SPEAKER.values())
    assert [u.frames for u in utterances] == [10, 11, 12, 13, 14, 15]
    for utterance, array in zip(utterances, ARRAYS.values(), strict=True):
        assert shape(utterance) == array.shape
        assert np.array_equal(load(utterance), array) and load(utterance).dtype == np.float32


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
    ("lines", "values"),
    [
        ("u0.npy\ts0\n", ["columns path and label", "['u0.npy', 's0']"]),
        ("", ["columns path and label", "[]"]),
        ("path\tlabel\nu0.npy s0\n", ["line 2", "1 values", "2 columns"]),
        ("path\tlabel\nu0.npy\t \n", ["line 2", "empty", r"'u0.npy\t '"]),
        ("path\tlabel\tframes\nu0.npy\ts0\tten\n", ["line 2", "'ten'", "frames"]),
    ],
)
def test_a_malformed_manifest_is_named_with_the_line(
    tsv: Path, lines: str, values: list[str]
) -> None:
    (tsv / "manifest.tsv").write_text(lines)
    with refused(tsv / "manifest.tsv", *values):
        list_speakers(tsv)


def test_a_manifest_without_utterances_is_refused(tsv: Path) -> None:
    (tsv / "manifest.tsv").write_text("path\tlabel\n")
    with refused("data_dir", tsv, "no utterances"):
        list_speakers(tsv)


def test_a_folder_that_is_missing_or_holds_neither_layout_suggests_mock_data(
    tmp_path: Path,
) -> None:
    with refused("data_dir", tmp_path / "none", "make --it"):
        list_speakers(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("")
    with refused("data_dir", "manifest.tsv", "feats.scp", "notes.txt", "make --it"):
        list_speakers(tmp_path)


@pytest.mark.parametrize("entry", ["u0 cat feats.ark |", "u0 feats.ark", "u0 feats.ark:13[0:4]"])
def test_commands_and_ranges_in_an_scp_file_are_refused(tmp_path: Path, entry: str) -> None:
    folder = kaldi(tmp_path / "kaldi")
    (folder / "feats.scp").write_text(entry + "\n")
    with refused(folder / "feats.scp", "line 1", repr(entry.split(" ", 1)[1]), "`file.ark:offset`"):
        list_speakers(folder)


def test_kaldi_folders_without_labels_are_refused(tmp_path: Path) -> None:
    folder = kaldi(tmp_path / "kaldi")
    (folder / "utt2spk").write_text("u0 s0\n")
    with refused(folder / "utt2spk", "utterance u1"):
        list_speakers(folder)
    (folder / "utt2spk").unlink()
    with refused("data_dir", "utt2spk"):
        list_speakers(folder)
