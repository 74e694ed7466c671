"""Text: prose of Python sources, tokenised once, masked; what is unfit is refused."""

from __future__ import annotations

import operator
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from data_command import run_data_command
from made_up_text import documents
from refusal import check_refused_command, refused
from torch.utils.data import DataLoader

from gallery_lib.data import text
from gallery_lib.data.masking import IGNORED, Hide, PackedText, infill, mask_tokens


@pytest.fixture(scope="session")
def text_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small text files, which must not be changed."""
    folder = tmp_path_factory.mktemp("text") / "files"
    (folder / "below").mkdir(parents=True)
    for number, document in enumerate(documents(count=6, sentences=150)):
        (folder / ("below" if number % 2 else ".") / f"{number}.txt").write_text(
            document.replace("\n", "\n\n")
        )
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture(scope="session")
def prepared(text_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same text, tokenised, which must not be changed."""
    return text.prepare(text_files, tmp_path_factory.mktemp("tokens") / "made").root


@pytest.fixture(scope="session")
def wordpiece(prepared: Path) -> text.TokenisedText:
    return text.find(str(prepared), "wordpiece")


@pytest.fixture(scope="session")
def byte_bpe(prepared: Path) -> text.TokenisedText:
    return text.find(str(prepared), "byte-bpe")


SOURCES = {
    "test/left_out.py": '"""A docstring of a test, which is not looked at by anyone."""\n',
    "broken.py": "def (:\n",
    "b.py": '"""Docstring of the module,\n'
    "which goes over two lines.\n"
    "\n"
    ">>> and_an_example() + of_some_code(1, 2, 3)\n"
    '"""\n'
    "# A comment that goes over\n# two lines of this source as well.\n"
    "def f(x):\n"
    "    return {'key': 'short', 'message': 'A message to the user of this program.'}\n"
    "table = '0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07'\n",
    "a.py": '"""Docstring of the module, which goes over two lines."""\n'
    "class A:\n"
    '    """What this class is meant to be."""\n',
}


def test_prose_is_taken_from_python_sources_and_code_is_not(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source)
    assert text.standard_library(tmp_path) == [
        "Docstring of the module, which goes over two lines.\nWhat this class is meant to be.",
        (
            "A message to the user of this program.\n"
            "A comment that goes over two lines of this source as well."
        ),
    ]


def test_a_python_without_sources_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text.sysconfig, "get_path", lambda name: str(tmp_path))
    with refused("data_dir", tmp_path, " 0 characters"):
        text.default_corpus()


def test_a_tenth_of_the_documents_is_held_out_and_long_ones_count_as_several() -> None:
    for whole in (
        ["one " * 200_000],
        [f"document {i} " * 1000 for i in range(40)],
        ["ab" * 500_000],
        ["short text. " * 2000],
    ):
        train, held_out = text.split_corpus(whole)
        share = sum(map(len, held_out)) / sum(map(len, train + held_out))
        assert 0.05 < share < 0.12
        both, given = (Counter("".join(texts)) for texts in (train + held_out, whole))
        assert {**both, " ": 0} == {**given, " ": 0}
    train, held_out = text.split_corpus(["alpha beta\ngamma " * 20_000])
    words = {word for part in train + held_out for word in part.split()}
    assert len(train) > 10 and words == {"alpha", "beta", "gamma"}  # none is cut


def test_a_folder_of_text_is_tokenised_once_into_the_cache(
    text_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    first = text.find(str(text_files), "wordpiece")
    assert first.folder.is_relative_to(tmp_path)
    # From here on, tokenising again would fail.
    monkeypatch.setattr(text, "text_folder", lambda *_: 1 / 0)
    assert text.find(str(text_files), "byte-bpe").folder.parent == first.folder.parent
    assert [path.name for path in (tmp_path / "data").iterdir()] == [first.folder.parent.name]


def test_changed_text_is_tokenised_anew(text_files: Path, tmp_path: Path) -> None:
    files, left_out = text.text_files(text_files)
    assert str(left_out) == "1 with another ending (picture.png)"
    keys = {text.digest(text_files, files), text.digest(text_files, files[:-1])}
    copy = tmp_path / files[0].name
    for end in (b"", b"."):
        copy.write_bytes(files[0].read_bytes() + end)
        keys.add(text.digest(tmp_path, [copy]))
    assert len(keys) == 4


def test_the_process_may_fork_after_tokenising_a_folder(text_files: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom gallery_lib.data import text\n"
        f"tokens = text.find({str(text_files)!r}, 'wordpiece')\n"
        "tokens.tokenizer().decode(tokens.tokens('train')[:50].tolist())\n"
        "if os.fork() == 0: os._exit(0)\nos.wait()\n"
    )
    environment = os.environ | {
        "GALLERY_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(text.__file__).parents[2]),
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
    files, left_out = text.text_files(copy)
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
    files, _ = text.text_files(text_files)
    train, held_out = text.split_corpus(text.text_folder(text_files, files))
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


def batches(dataset: PackedText) -> torch.Tensor:
    return torch.cat([batch["input_ids"] for batch in DataLoader(dataset, 5)])


def words_of(sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the words of a masked sample as they were."""
    return torch.where(sample["labels"] == IGNORED, sample["input_ids"], sample["labels"])


@pytest.mark.parametrize(("kind", "hide"), [("wordpiece", mask_tokens), ("byte-bpe", infill)])
def test_samples_are_int64_of_the_asked_length_and_follow_each_other(
    prepared: Path, kind: str, hide: Hide
) -> None:
    tokens = text.find(str(prepared), kind)
    for length in (8, 64, 512):
        dataset = PackedText(tokens, "train", length, hide, train=True)
        samples = [dataset[index] for index in range(len(dataset))]
        assert len(samples) == len(tokens.tokens("train")) // (length - 2)
        assert {(value.shape, value.dtype) for sample in samples for value in sample.values()} == {
            ((length,), torch.int64)
        }
        whole = words_of if hide is mask_tokens else operator.itemgetter("labels")
        words = torch.cat([whole(sample)[1:-1] for sample in samples])
        assert torch.equal(
            words, torch.from_numpy(tokens.tokens("train")[: len(words)].astype(np.int64))
        )


def test_held_out_samples_are_fixed_and_spread_over_the_text(wordpiece: text.TokenisedText) -> None:
    held_out = partial(PackedText, wordpiece, "held_out", 16, mask_tokens, train=False)
    dataset, every, other = held_out(at_most=7), held_out(), held_out(seed=9, at_most=7)
    first = batches(dataset)
    dataset.set_epoch(5)
    assert torch.equal(first, batches(dataset)) and torch.equal(first, batches(other))
    assert len(first) == 7 and len(every) > 50
    last = words_of(dataset[6])
    place = [torch.equal(last, words_of(every[index])) for index in range(len(every))]
    assert place.index(True) > 0.8 * len(every)


def test_bert_masks_15_percent_of_the_words_four_fifths_of_them_with_the_mask(
    wordpiece: text.TokenisedText,
) -> None:
    dataset, samples = PackedText(wordpiece, "train", 128, mask_tokens, train=True), []
    for epoch in range(6):
        dataset.set_epoch(epoch)
        samples += [dataset[index] for index in range(len(dataset))]
    inputs, labels = (
        torch.stack([sample[name] for sample in samples]) for name in ("input_ids", "labels")
    )
    chosen = labels != IGNORED
    assert not chosen[:, 0].any() and not chosen[:, -1].any() and (labels[chosen] >= 5).all()
    share = chosen.float().mean(dim=1) * 128 / 126
    assert share.min() > 0.13 and share.max() < 0.16
    masked, kept = inputs[chosen] == wordpiece.specials.mask, inputs[chosen] == labels[chosen]
    replaced = inputs[chosen][~masked & ~kept]
    assert abs(masked.float().mean() - 0.8) < 0.02 and abs(kept.float().mean() - 0.1) < 0.02
    assert (
        replaced.min() >= 5
        and replaced.max() < wordpiece.pieces
        and len(replaced.unique()) > len(replaced) / 4
    )
    assert chosen.any(dim=0)[1:-1].all()  # every word may be chosen


def test_bart_hides_30_percent_of_the_words_in_spans_of_three_on_average(
    byte_bpe: text.TokenisedText,
) -> None:
    mask = byte_bpe.specials.mask
    words = np.arange(100, 100 + 200)  # each once, so that it can be told what is missing
    lengths = []
    for seed in range(200):
        sample = infill(words, np.random.default_rng(seed), byte_bpe)
        source = sample["input_ids"][sample["attention_mask"] == 1]
        assert (source[0], source[-1]) == (0, 2) and (
            sample["input_ids"][len(source) :] == byte_bpe.specials.pad
        ).all()
        assert sample["hidden"].sum() == 60
        visible = source[1:-1][source[1:-1] != mask]
        assert np.array_equal(visible, words[sample["hidden"][1:-1] == 0])
        assert sample["labels"].tolist() == [0, *words, 2] and sample[
            "decoder_input_ids"
        ].tolist() == [2, 0, *words]
        edges = np.diff(np.concatenate([[0], sample["hidden"], [0]]))
        runs = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        spans = (source == mask).sum()
        assert len(runs) <= spans
        lengths += [*runs, *[0] * (spans - len(runs))]
    assert (
        abs(np.mean(lengths) - 3) < 0.2
        and abs(np.mean(np.array(lengths) == 0) - np.exp(-3)) < 0.02
        and max(lengths) > 7
    )


def test_infilling_never_outgrows_the_sample(byte_bpe: text.TokenisedText) -> None:
    for count in (6, 7, 10, 30):
        for seed in range(300):
            sample = infill(np.arange(100, 100 + count), np.random.default_rng(seed), byte_bpe)
            assert {len(values) for values in sample.values()} == {count + 2} and sample[
                "hidden"
            ].sum() == max(1, round(0.3 * count))


def test_a_text_that_is_shorter_than_a_sample_says_so(wordpiece: text.TokenisedText) -> None:
    with refused("sequence_length", 100_000, "held_out", re.compile(r"\d+ tokens")):
        PackedText(wordpiece, "held_out", 100_000, mask_tokens, train=False)
