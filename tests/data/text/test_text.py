"""Text data: its sources, tokenization, masking, and reports on unfit text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import grammar
from gallery_lib.data.text import tokenized as text
from gallery_lib.data.text import tokenizers as text_tokenizers
from gallery_lib.data.text.masking import IGNORED, Hide, PackedText, infill, mask_tokens
from gallery_lib.data.text.tokenized import TokenisedText
from gallery_lib.errors import InputError

COMMAND = [sys.executable, str(Path(__file__).resolve().parents[3] / "data_prep" / "text.py")]


@pytest.fixture(scope="session")
def text_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small text files, which must not be changed."""
    folder = tmp_path_factory.mktemp("text") / "files"
    (folder / "below").mkdir(parents=True)
    for number, document in enumerate(grammar.documents(count=6, sentences=150)):
        (folder / ("below" if number % 2 else ".") / f"{number}.txt").write_text(
            document.replace("\n", "\n\n")
        )
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture(scope="session")
def prepared(text_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same text, tokenised, which must not be changed."""
    return text.prepare(text_files, tmp_path_factory.mktemp("tokens") / "made").root


def wordpiece(prepared: Path) -> TokenisedText:
    return text.find(str(prepared), "wordpiece")


def byte_bpe(prepared: Path) -> TokenisedText:
    return text.find(str(prepared), "byte-bpe")


# --------------------------------------------------------------------------------------------------
# Corpora


def test_prose_is_taken_from_python_sources_and_code_is_not(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text(
        '"""A docstring of a test, which is not looked at by anyone."""\n'
    )
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "b.py").write_text(
        '"""Docstring of the module,\n'
        "which goes over two lines.\n"
        "\n"
        ">>> and_an_example() + of_some_code(1, 2, 3)\n"
        '"""\n'
        "# A comment that goes over\n# two lines of this source as well.\n"
        "def f(x):\n"
        "    return {'key': 'short', 'message': 'A message to the user of this program.'}\n"
        "table = '0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07'\n"
    )
    (tmp_path / "a.py").write_text(
        '"""Docstring of the module, which goes over two lines."""\n'
        "class A:\n"
        '    """What this class is meant to be."""\n'
    )
    assert text_corpus.standard_library(tmp_path).documents == (
        "Docstring of the module, which goes over two lines.\nWhat this class is meant to be.",
        (
            "A message to the user of this program.\n"
            "A comment that goes over two lines of this source as well."
        ),
    )


def test_the_made_up_language_takes_over_where_no_sources_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    corpus = text_corpus.default()
    assert corpus.source == "a made-up language" and corpus.characters > text_corpus.ENOUGH_ENGLISH
    assert corpus.documents == tuple(grammar.documents())


def test_a_tenth_of_the_documents_is_held_out_and_long_ones_count_as_several() -> None:
    for documents in (
        ["one " * 200_000],
        [f"document {i} " * 1000 for i in range(40)],
        ["ab" * 500_000],
        ["short text. " * 2000],
    ):
        corpus = text_corpus.Corpus("test", tuple(documents))
        train, held_out = corpus.split()
        share = sum(map(len, held_out)) / sum(map(len, train + held_out))
        assert 0.05 < share < 0.12
        letters = (
            sorted("".join(train + held_out).replace(" ", "")),
            sorted("".join(documents).replace(" ", "")),
        )
        assert letters[0] == letters[1]


def test_words_are_not_cut_where_a_document_is() -> None:
    train, held_out = text_corpus.Corpus("test", ("alpha beta\ngamma " * 20_000,)).split()
    assert len(train) > 10 and {word for part in train + held_out for word in part.split()} == {
        "alpha",
        "beta",
        "gamma",
    }


# --------------------------------------------------------------------------------------------------
# Pieces


@pytest.mark.parametrize("kind", text_tokenizers.KINDS)
def test_the_same_text_gives_the_same_vocabulary(kind: str) -> None:
    documents = grammar.documents(count=3)
    trained = [text_tokenizers.KINDS[kind].train(documents).to_str() for _ in range(3)]
    assert trained[0] == trained[1] == trained[2]


@pytest.mark.parametrize("kind", text_tokenizers.KINDS)
def test_special_tokens_have_the_ids_that_the_models_are_configured_with(kind: str) -> None:
    special = text_tokenizers.KINDS[kind].specials
    tokenizer = text_tokenizers.KINDS[kind].train(grammar.documents(count=2))
    assert [tokenizer.token_to_id(token) for token in special.tokens] == [0, 1, 2, 3, 4]
    pad, start, end = (0, 2, 3) if kind == "wordpiece" else (1, 0, 2)
    assert (special.pad, special.start, special.end) == (pad, start, end)
    assert special.tokens[special.mask] in ("[MASK]", "<mask>") and special.tokens[special.pad] in (
        "[PAD]",
        "<pad>",
    )


@pytest.mark.parametrize("kind", text_tokenizers.KINDS)
def test_a_special_token_in_the_text_is_text(kind: str) -> None:
    special = text_tokenizers.KINDS[kind].specials
    document = "the word " + " and ".join(special.tokens) + " is a word"
    tokenizer = text_tokenizers.KINDS[kind].train([document] * 3)
    ids = text_tokenizers.encode(tokenizer, [document], special.end)
    assert not set(ids[:-1].tolist()) & set(range(5)) and ids[-1] == special.end


def test_tokens_decode_to_the_text_they_were_made_of(text_files: Path, prepared: Path) -> None:
    train, held_out = text_corpus.text_folder(
        text_files, text_corpus.text_files(text_files)[0]
    ).split()
    tokens = byte_bpe(prepared)
    for split, documents in (("train", train), ("held_out", held_out)):
        decoded = tokens.tokenizer().decode(
            tokens.tokens(split).tolist(), skip_special_tokens=False
        )
        assert decoded == "".join(f"{document}</s>" for document in documents)
    words = wordpiece(prepared)
    decoded = words.tokenizer().decode(words.tokens("held_out").tolist(), skip_special_tokens=True)
    assert decoded.replace(" ", "") == "".join(held_out).lower().replace(" ", "").replace("\n", "")
    assert not np.isin(words.tokens("held_out"), words.specials.unknown).any()


# --------------------------------------------------------------------------------------------------
# Samples


def batches(dataset: PackedText, workers: int) -> torch.Tensor:
    return torch.cat([batch["input_ids"] for batch in DataLoader(dataset, 5, num_workers=workers)])


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
        if hide is infill:
            words = torch.cat([sample["labels"][1:-1] for sample in samples])
        else:
            words = torch.cat(
                [
                    torch.where(s["labels"] == IGNORED, s["input_ids"], s["labels"])[1:-1]
                    for s in samples
                ]
            )
        assert torch.equal(
            words, torch.from_numpy(tokens.tokens("train")[: len(words)].astype(np.int64))
        )


@pytest.mark.parametrize(("kind", "hide"), [("wordpiece", mask_tokens), ("byte-bpe", infill)])
def test_gaps_are_the_same_for_any_number_of_workers_and_others_in_another_epoch_or_seed(
    prepared: Path, kind: str, hide: Hide
) -> None:
    tokens = text.find(str(prepared), kind)
    dataset = PackedText(tokens, "train", 64, hide, train=True, seed=3)
    first = batches(dataset, 0)
    assert torch.equal(first, batches(dataset, 2))
    dataset.set_epoch(1)
    assert (first != batches(dataset, 0)).any(dim=1).all()
    dataset.set_epoch(0)
    assert torch.equal(first, batches(dataset, 0))
    assert (
        (first != batches(PackedText(tokens, "train", 64, hide, train=True, seed=4), 0))
        .any(dim=1)
        .all()
    )


def test_set_epoch_reaches_persistent_workers(prepared: Path) -> None:
    dataset = PackedText(wordpiece(prepared), "train", 64, mask_tokens, train=True)
    loader = DataLoader(dataset, 5, num_workers=2, persistent_workers=True)
    seen = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        seen.append(torch.cat([batch["input_ids"] for batch in loader]))
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])


def test_held_out_samples_are_fixed_and_spread_over_the_text(prepared: Path) -> None:
    tokens = wordpiece(prepared)
    dataset = PackedText(tokens, "held_out", 16, mask_tokens, train=False, at_most=7)
    every = PackedText(tokens, "held_out", 16, mask_tokens, train=False)
    first = batches(dataset, 0)
    dataset.set_epoch(5)
    assert torch.equal(first, batches(dataset, 0))
    assert torch.equal(
        first,
        batches(PackedText(tokens, "held_out", 16, mask_tokens, train=False, seed=9, at_most=7), 0),
    )
    assert len(first) == 7 and len(every) > 50
    last = torch.where(
        dataset[6]["labels"] == IGNORED, dataset[6]["input_ids"], dataset[6]["labels"]
    )
    place = [
        torch.equal(last, torch.where(s["labels"] == IGNORED, s["input_ids"], s["labels"]))
        for s in map(every.__getitem__, range(len(every)))
    ]
    assert place.index(True) > 0.8 * len(every)


def test_bert_masks_15_percent_of_the_words_four_fifths_of_them_with_the_mask(
    prepared: Path,
) -> None:
    tokens = wordpiece(prepared)
    dataset = PackedText(tokens, "train", 128, mask_tokens, train=True)
    samples = [dataset[index] for index in range(len(dataset))]
    for epoch in range(1, 6):
        dataset.set_epoch(epoch)
        samples += [dataset[index] for index in range(len(dataset))]
    inputs, labels = (
        torch.stack([sample[name] for sample in samples]) for name in ("input_ids", "labels")
    )
    chosen = labels != IGNORED
    assert not chosen[:, 0].any() and not chosen[:, -1].any() and (labels[chosen] >= 5).all()
    share = chosen.float().mean(dim=1) * 128 / 126
    assert share.min() > 0.13 and share.max() < 0.16
    masked, kept = inputs[chosen] == tokens.specials.mask, inputs[chosen] == labels[chosen]
    replaced = inputs[chosen][~masked & ~kept]
    assert abs(masked.float().mean() - 0.8) < 0.02 and abs(kept.float().mean() - 0.1) < 0.02
    assert (
        replaced.min() >= 5
        and replaced.max() < tokens.pieces
        and len(replaced.unique()) > len(replaced) / 4
    )
    every_word_may_be_chosen = chosen.any(dim=0)[1:-1].float().mean()
    assert every_word_may_be_chosen == 1


def test_bart_hides_30_percent_of_the_words_in_spans_of_three_on_average(prepared: Path) -> None:
    tokens = byte_bpe(prepared)
    mask = tokens.specials.mask
    words = np.arange(100, 100 + 200)  # each once, so that it can be told what is missing
    lengths = []
    for seed in range(200):
        sample = infill(words, np.random.default_rng(seed), tokens)
        source = sample["input_ids"][sample["attention_mask"] == 1]
        assert (source[0], source[-1]) == (0, 2) and (
            sample["input_ids"][len(source) :] == tokens.specials.pad
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


def test_infilling_never_outgrows_the_sample(prepared: Path) -> None:
    tokens = byte_bpe(prepared)
    for count in (6, 7, 10, 30):
        for seed in range(300):
            sample = infill(np.arange(100, 100 + count), np.random.default_rng(seed), tokens)
            assert {len(values) for values in sample.values()} == {count + 2} and sample[
                "hidden"
            ].sum() == max(1, round(0.3 * count))


def test_a_text_that_is_shorter_than_a_sample_says_so(prepared: Path) -> None:
    with pytest.raises(
        InputError, match=r"sequence_length=100000: the held_out text in .* has only \d+ tokens"
    ):
        PackedText(wordpiece(prepared), "held_out", 100_000, mask_tokens, train=False)


# --------------------------------------------------------------------------------------------------
# Folders


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
    with pytest.raises(
        InputError, match=rf"no text to train on in {tmp_path}.*python3 data_prep/text.py"
    ):
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
            [*COMMAND, "--data_dir", text_files, "--out", tmp_path / "made"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in "ab"
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("made now" in line for line in said) == [False, True]


def run(*arguments: object, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GALLERY_CACHE_DIR": str(cache)}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


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
    ("content", "message"),
    [
        (None, "does not exist"),
        ({}, "has no .txt files in it or below. It is empty."),
        (
            {"notes.md": b"words"},
            "has no .txt files in it or below. It holds 1 with another ending (notes.md).",
        ),
        (
            {"a.txt": b"", "b.txt": b" \n\n "},
            "hold 0 characters of text; at least 20000 are needed",
        ),
        ({"a.txt": b"A few words only."}, "hold 17 characters of text; at least 20000"),
        (
            {"a.txt": b"words " * 5000, "b.txt": b"na\xefve " * 5000},
            "b.txt is not UTF-8 text: byte 0xef at position 2.",
        ),
    ],
)
def test_unfit_text_ends_the_command_with_code_2_and_one_message(
    tmp_path: Path, content: dict[str, bytes] | None, message: str
) -> None:
    folder = tmp_path / "texts"
    if content is not None:
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
    result = run("--data_dir", folder, cache=tmp_path / "cache")
    assert result.returncode == 2 and message in result.stderr and str(folder) in result.stderr
    assert result.stderr.count("\n") == 1 and not list((tmp_path / "cache").rglob("manifest.json"))


def test_a_file_in_place_of_a_folder_is_refused(text_files: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0\.txt is a file. Give the folder"):
        text.prepare(text_files / "0.txt", tmp_path / "made")


def with_an_id(path: Path, index: int, value: int) -> None:
    tokens = np.load(path)
    tokens[index] = value
    np.save(path, tokens)


def without_digests(made: Path) -> None:
    """Rewrite the folder as an earlier version wrote it, without digests."""
    manifest = json.loads((made / "manifest.json").read_text())
    for kind in manifest["kinds"].values():
        del kind["sha256"]
    (made / "manifest.json").write_text(json.dumps(manifest))


# The damage, what is said of it, and whether it shows without digests.
DAMAGE: list[tuple[Callable[[Path], object], str, bool]] = [
    (
        lambda made: (made / "wordpiece/train.npy").unlink(),
        "train.npy is damaged: it is missing",
        True,
    ),
    (lambda made: os.truncate(made / "wordpiece/train.npy", 500), "train.npy is damaged: ", True),
    (
        lambda made: (made / "byte-bpe/held_out.npy").write_bytes(b"x" * 400),
        "held_out.npy is damaged: ",
        True,
    ),
    (
        lambda made: np.save(made / "byte-bpe/train.npy", np.zeros(10, np.uint16)),
        r"it holds uint16 \[10\], and uint16",
        True,
    ),
    (
        lambda made: with_an_id(made / "byte-bpe/train.npy", 7, 60_000),
        "it holds the id 60000, and the vocabulary has",
        True,
    ),
    (
        lambda made: with_an_id(made / "byte-bpe/train.npy", 7, 4),
        "train.npy is damaged: it is not what was written",
        False,
    ),
    (
        lambda made: (made / "wordpiece/tokenizer.json").write_text("{"),
        "tokenizer.json is damaged: it is not what",
        False,
    ),
    (
        lambda made: (made / "manifest.json").write_text('{"format": 1, "key": "x", "kinds": {}}'),
        "cannot be read as",
        False,
    ),
]


@pytest.mark.parametrize(("damage", "said", "shows_without"), DAMAGE)
def test_damaged_tokens_are_not_complete_already(
    text_files: Path,
    prepared: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    said: str,
    shows_without: bool,
) -> None:
    made = Path(shutil.copytree(prepared, tmp_path / "made"))
    assert not text.prepare(text_files, made).made
    if shows_without:
        without_digests(made)
        assert not text.prepare(text_files, made).made
    damage(made)
    with pytest.raises(InputError, match=said):
        text.prepare(text_files, made)


def test_a_run_refuses_tokens_that_are_truncated_or_outside_the_vocabulary(
    prepared: Path, tmp_path: Path
) -> None:
    made = Path(shutil.copytree(prepared, tmp_path / "made"))
    with_an_id(made / "byte-bpe" / "train.npy", 70, 60_000)
    data = PackedText(byte_bpe(made), "train", 32, infill, train=True)
    data[0]
    with pytest.raises(InputError, match=r"byte-bpe/train\.npy is damaged: token 70 is 60000"):
        data[2]
    os.truncate(made / "wordpiece" / "held_out.npy", 300)
    with pytest.raises(InputError, match=r"held_out\.npy is damaged"):
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
    with pytest.raises(InputError, match="holds no tokenised text; nothing was changed"):
        text.prepare(text_files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="holds other text: text files of files"):
        text.prepare(None, prepared)


def test_tokens_of_another_version_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(InputError, match="made by another version"):
        text.find(str(tmp_path), "wordpiece")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json cannot be read"):
        text.find(str(tmp_path), "wordpiece")


@pytest.mark.slow
def test_the_default_text_is_english_of_some_size_made_in_seconds(tmp_path: Path) -> None:
    made = run(cache=tmp_path)
    assert made.returncode == 0, made.stderr
    manifest = json.loads((tmp_path / "data" / "text" / "manifest.json").read_text())
    assert manifest["kinds"]["wordpiece"]["tokens"]["train"] > 100_000
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 20e6
    assert "complete already" in run(cache=tmp_path).stdout
