"""Text is tokenised once, whatever interrupts that; what is unfit or damaged is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data_command import run_data_command
from made_up_text import documents
from refusal import check_refused_command, refused

from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenized as text


def test_a_folder_of_text_is_tokenised_once_into_the_cache(
    text_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    first = text.find(str(text_files), "wordpiece")
    assert first.folder.is_relative_to(tmp_path)
    # From here on, tokenising again would fail.
    monkeypatch.setattr(text_corpus, "text_folder", lambda *_: 1 / 0)
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


run = partial(run_data_command, "text")


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (None, ["does not exist"]),
        ({}, ["no .txt files", "It holds nothing"]),
        ({"notes.md": b"words"}, ["no .txt files", "1 with another ending (notes.md)"]),
        ({"a.txt": b"", "b.txt": b" \n\n "}, [" 0 characters", 20000]),
        ({"a.txt": b"A few words only."}, [" 17 characters", 20000]),
        (
            {"a.txt": b"words " * 5000, "b.txt": b"na\xefve " * 5000},
            ["b.txt: it is not UTF-8", "0xef", "position 2"],
        ),
        ({"a.txt": ("words " * 5000).encode("utf-16")}, ["0xff", "iconv"]),
        ({"a.txt": ("words " * 5000).encode("utf-16-le")}, ["zero bytes", "iconv"]),
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
    assert result.stderr.count("\n") == 1 and not list((tmp_path / "cache").rglob("*.json"))


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


@pytest.mark.slow
def test_the_default_text_is_english_of_some_size_made_in_seconds(tmp_path: Path) -> None:
    made = run(cache=tmp_path)
    assert made.returncode == 0 and "made now" in made.stdout, made.stderr
    assert len(np.load(tmp_path / "data" / "english" / "wordpiece" / "train.npy")) > 100_000
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 20e6
    assert "complete already" in run(cache=tmp_path).stdout


@pytest.mark.parametrize(
    ("kind", "pad", "start", "end"), [("wordpiece", 0, 2, 3), ("byte-bpe", 1, 0, 2)]
)
def test_a_vocabulary_is_that_of_its_text_with_the_ids_that_the_models_have(
    kind: str, pad: int, start: int, end: int
) -> None:
    special, train = text.KINDS[kind].specials, text.KINDS[kind].train
    trained = [train(documents(count=3)) for _ in range(3)]
    assert len({tokenizer.to_str() for tokenizer in trained}) == 1
    assert [trained[0].token_to_id(token) for token in special.tokens] == [0, 1, 2, 3, 4]
    assert (special.pad, special.start, special.end) == (pad, start, end)
    assert special.tokens[special.mask] in ("[MASK]", "<mask>")
    assert special.tokens[special.pad] in ("[PAD]", "<pad>")
    # A special token in the text is text.
    document = "the word " + " and ".join(special.tokens) + " is a word"
    ids = text.encode(train([document] * 3), [document], special.end)
    assert not set(ids[:-1].tolist()) & set(range(5)) and ids[-1] == special.end


def test_tokens_decode_to_the_text_they_were_made_of(
    text_files: Path, wordpiece: text.TokenisedText, byte_bpe: text.TokenisedText
) -> None:
    files, _ = text_corpus.text_files(text_files)
    train, held_out = text_corpus.split(text_corpus.text_folder(text_files, files))
    for split, texts in (("train", train), ("held_out", held_out)):
        decoded = byte_bpe.tokenizer().decode(
            byte_bpe.tokens(split).tolist(), skip_special_tokens=False
        )
        assert decoded == "".join(f"{document}</s>" for document in texts)
    decoded = wordpiece.tokenizer().decode(
        wordpiece.tokens("held_out").tolist(), skip_special_tokens=True
    )
    assert decoded.replace(" ", "") == "".join(held_out).lower().replace(" ", "").replace("\n", "")
    assert not np.isin(wordpiece.tokens("held_out"), wordpiece.specials.unknown).any()
