"""A folder of text is tokenised once into the cache, whatever interrupts that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_command import data_command
from refusal import refused

from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenized as text
from gallery_lib.data.text import tokenizers as text_tokenizers


def test_a_folder_of_text_is_tokenised_once_into_the_cache(
    text_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    first = text.find(str(text_files), "wordpiece")
    assert first.folder.is_relative_to(tmp_path) and "TOKENIZERS_PARALLELISM" not in os.environ
    # From here on, tokenising again would fail.
    monkeypatch.setattr(text_corpus, "text_folder", None)
    assert text.find(str(text_files), "byte-bpe").folder.parent == first.folder.parent
    assert [path.name for path in (tmp_path / "data").iterdir()] == [first.folder.parent.name]


def test_changed_text_is_tokenised_anew(text_files: Path, tmp_path: Path) -> None:
    files, left_out = text_corpus.text_files(text_files)
    assert str(left_out) == "1 with another ending (picture.png)"
    keys = [text_corpus.digest(text_files, files), text_corpus.digest(text_files, files[:-1])]
    (tmp_path / files[0].name).write_bytes(files[0].read_bytes())
    keys.append(text_corpus.digest(tmp_path, [tmp_path / files[0].name]))
    (tmp_path / files[0].name).write_bytes(files[0].read_bytes() + b".")
    keys.append(text_corpus.digest(tmp_path, [tmp_path / files[0].name]))
    assert len(set(keys)) == 4


def test_text_that_was_not_made_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    with refused("data_dir", tmp_path, "python3 data_prep/text.py"):
        text.find(None, "wordpiece")


def test_an_interrupted_preparation_leaves_nothing_behind(
    text_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(text_tokenizers, "encode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        text.prepare(text_files, tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_process_are_removed(text_files: Path, tmp_path: Path) -> None:
    (tmp_path / ".made.77.tmp").mkdir()
    assert text.prepare(text_files, tmp_path / "made").made
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_process_may_fork_after_tokenising_a_folder(text_files: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom gallery_lib.data.text import tokenized as text\n"
        f"tokens = text.find({str(text_files)!r}, 'wordpiece')\n"
        "tokens.tokenizer().decode(tokens.tokens('train')[:50].tolist())\n"
        "if os.fork() == 0: os._exit(0)\nos.wait()\n"
    )
    environment = os.environ | {
        "GALLERY_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(text.__file__).parents[3]),
    }
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_two_processes_that_need_the_same_text_make_it_once(
    text_files: Path, tmp_path: Path
) -> None:
    both = [
        subprocess.Popen(
            data_command("text", "--data_dir", text_files, "--out", tmp_path / "made"),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in "ab"
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("made now" in line for line in said) == [False, True]
