"""The text command, and reports on text and tokens that are unfit or damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data.text.vocabularies import byte_bpe, wordpiece
from data_command import run_data_command
from refusal import check_refused_command, refused

from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenized as text
from gallery_lib.data.text.masking import PackedText, infill, mask_tokens

run = partial(run_data_command, "text")


def test_the_command_makes_text_where_tasks_look_for_it_and_finds_it_again(
    text_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run("--data_dir", text_files, cache=tmp_path)
    assert made.returncode == 0 and "made now" in made.stdout
    assert all(line.startswith("reading the text") for line in made.stderr.splitlines())
    again = run("--data_dir", text_files, cache=tmp_path)
    assert again.returncode == 0 and "complete already" in again.stdout
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(text_corpus, "text_folder", None)
    assert len(text.find(str(text_files), "wordpiece").tokens("train")) > 5000


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (None, ["does not exist"]),
        ({}, ["no .txt files", "It is empty."]),
        ({"notes.md": b"words"}, ["no .txt files", "1 with another ending (notes.md)"]),
        ({"a.txt": b"", "b.txt": b" \n\n "}, [" 0 characters", 20000]),
        ({"a.txt": b"A few words only."}, [" 17 characters", 20000]),
        (
            {"a.txt": b"words " * 5000, "b.txt": b"na\xefve " * 5000},
            ["b.txt: it is not UTF-8", "0xef", "position 2"],
        ),
        ({"a.txt": ("words " * 5000).encode("utf-16")}, ["0xff", "-f utf-16 "]),
        ({"a.txt": ("words " * 5000).encode("utf-16-le")}, ["zero bytes", "-f utf-16 "]),
    ],
)
def test_unfit_text_ends_the_command_with_code_2_and_one_message(
    tmp_path: Path, content: dict[str, bytes] | None, values: list[object]
) -> None:
    folder = tmp_path / "texts"
    if content is not None:
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
    result = run("--data_dir", folder, cache=tmp_path / "cache")
    check_refused_command(result.returncode, result.stderr, folder, *values)
    assert result.stderr.count("\n") == 1 and not list((tmp_path / "cache").rglob("manifest.json"))


def test_a_file_in_place_of_a_folder_is_refused(text_files: Path, tmp_path: Path) -> None:
    with refused("data_dir", text_files / "0.txt", "is a file"):
        text.prepare(text_files / "0.txt", tmp_path / "made")


def with_an_id(path: Path, index: int, value: int) -> None:
    tokens = np.load(path)
    tokens[index] = value
    np.save(path, tokens)


DAMAGE: list[tuple[Callable[[Path], object], str, str]] = [
    (
        lambda made: (made / "wordpiece/train.npy").unlink(),
        "wordpiece/train.npy",
        "not what was written",
    ),
    (
        lambda made: with_an_id(made / "byte-bpe/train.npy", 7, 4),
        "byte-bpe/train.npy",
        "not what was written",
    ),
    (
        lambda made: (made / "wordpiece/tokenizer.json").write_text("{"),
        "wordpiece/tokenizer.json",
        "not what was written",
    ),
    (
        lambda made: (made / "manifest.json").write_text('{"format": 1, "key": "x", "kinds": {}}'),
        "manifest.json",
        "KeyError('wordpiece')",
    ),
]


@pytest.mark.parametrize(("damage", "file", "reason"), DAMAGE)
def test_damaged_tokens_are_not_complete_already(
    text_files: Path,
    prepared: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    file: str,
    reason: str,
) -> None:
    made = Path(shutil.copytree(prepared, tmp_path / "made"))
    assert not text.prepare(text_files, made).made
    damage(made)
    with refused(made / file, reason):
        text.prepare(text_files, made)


def test_a_run_refuses_tokens_that_are_truncated_or_outside_the_vocabulary(
    prepared: Path, tmp_path: Path
) -> None:
    made = Path(shutil.copytree(prepared, tmp_path / "made"))
    with_an_id(made / "byte-bpe" / "train.npy", 70, 60_000)
    data = PackedText(byte_bpe(made), "train", 32, infill, train=True)
    data[0]
    with refused(made / "byte-bpe/train.npy", "token 70 is 60000"):
        data[2]
    os.truncate(made / "wordpiece" / "held_out.npy", 300)
    with refused(made / "wordpiece/held_out.npy"):
        PackedText(wordpiece(made), "held_out", 32, mask_tokens, train=False)


def test_text_files_of_any_case_count_and_others_are_named(
    text_files: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(text_files, tmp_path / "files"))
    (copy / "0.txt").rename(copy / "0.TXT")
    (copy / ".draft.txt").write_text("x")
    (copy / "empty.txt").touch()
    files, left_out = text_corpus.text_files(copy)
    assert len(files) == 6 and copy / "0.TXT" in files
    assert left_out.counts == {"hidden": 1, "empty": 1, "with another ending": 1}
    done = text.prepare(copy, tmp_path / "made")
    assert done.notices == (f"left out of {copy}: {left_out}",)


def test_a_folder_that_holds_anything_else_is_left_alone(
    text_files: Path, prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with refused("out", tmp_path, "no tokenised text"):
        text.prepare(text_files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with refused("out", prepared, "other text: text files of files"):
        text.prepare(None, prepared)


def test_tokens_of_another_version_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 0}))
    with refused(tmp_path / "manifest.json", "another version"):
        text.find(str(tmp_path), "wordpiece")
    (tmp_path / "manifest.json").write_text("{")
    with refused(tmp_path / "manifest.json", "JSONDecodeError"):
        text.find(str(tmp_path), "wordpiece")


@pytest.mark.thorough
@pytest.mark.slow
def test_the_default_text_is_english_of_some_size_made_in_seconds(tmp_path: Path) -> None:
    made = run(cache=tmp_path)
    assert made.returncode == 0, made.stderr
    manifest = json.loads((tmp_path / "data" / "text" / "manifest.json").read_text())
    assert manifest["kinds"]["wordpiece"]["tokens"]["train"] > 100_000
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 20e6
    assert "complete already" in run(cache=tmp_path).stdout
