"""Tokenised text on disk: made once from a corpus, then read as arrays of token ids.

    ROOT/manifest.json
    ROOT/wordpiece/tokenizer.json  train.npy  held_out.npy      uint16 [tokens]
    ROOT/byte-bpe/…                                             the same text in other pieces

`prepare` makes such a folder: elsewhere first, then renamed, so it is there as a whole or not at all. `find` gives the
one that belongs to a `data_dir`, and makes it where that is a folder of text files. Where text comes from is
corpus.py's business, what a piece is tokenizers.py's, and what a model is asked about it masking.py's.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gallery_lib import paths
from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenizers as text_tokenizers
from gallery_lib.data.text.corpus import Corpus
from gallery_lib.data.text.tokenizers import KINDS, Specials
from gallery_lib.errors import InputError, RunFailed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 1
SPLITS = ("train", "held_out")
MAKE_COMMAND = "python data_prep/text.py"
_MANIFEST = "manifest.json"
_DEFAULT_KEY = "default"


@dataclass(frozen=True)
class TokenisedText:
    """One kind of tokens in a folder that `prepare` made. `pieces` is the size of the trained vocabulary."""

    folder: Path
    specials: Specials
    pieces: int

    def tokens(self, split: str) -> np.ndarray:
        """All tokens of `train` or `held_out`, documents ended by `specials.end`: uint16 [tokens], mapped from disk."""
        return np.load(self.folder / f"{split}.npy", mmap_mode="r")

    def tokenizer(self) -> Tokenizer:
        """What turns ids into text again."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made, or found: where, of which text, and the number of tokens by kind and split."""

    root: Path
    source: str
    tokens: dict[str, dict[str, int]]
    made: bool
    seconds: float


def prepare(data_dir: Path | str | None = None, root: Path | str | None = None, *, threads: bool = True) -> Prepared:
    """Train both tokenizers on the text files of `data_dir` (default: the English at hand) and write `root`.

    `root` is where `find` looks when left out. Returns at once when it is there. `threads=False` lets the calling
    process fork afterwards. Raises InputError for unfit text or when `root` holds something else, RunFailed when
    writing fails.
    """
    started = time.perf_counter()
    key, make, default_root = _DEFAULT_KEY, text_corpus.default, paths.data_dir("text")
    if data_dir is not None:
        key, make, default_root = _of_folder(Path(data_dir).expanduser().absolute())
    root = Path(root).expanduser().absolute() if root is not None else default_root
    made = False
    if not _holds(root, key):
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            with _locked(root.parent), nullcontext() if threads else text_tokenizers.one_thread():
                if not _holds(root, key):  # another process may have made it meanwhile
                    _write(root, key, make())
                    made = True
        except OSError as error:
            raise RunFailed(f"Could not write the tokenised text in {root}: {error}. Free some space, or give another folder.") from error
    manifest = _read_manifest(root)
    tokens = {name: kind["tokens"] for name, kind in manifest["kinds"].items()}
    return Prepared(root, manifest["source"], tokens, made, time.perf_counter() - started)


def find(data_dir: str | None, kind: str) -> TokenisedText:
    """The tokens of `kind` for `data_dir`: a folder that `prepare` made, a folder of text files, or None for the default.

    Text files are tokenised into the cache the first time. Raises InputError when there is no text, or none that fits.
    """
    root = Path(data_dir).expanduser().absolute() if data_dir else paths.data_dir("text")
    if data_dir and not (root / _MANIFEST).exists():
        root = prepare(root, threads=False).root
    if not (root / _MANIFEST).exists():
        raise InputError(f"There is no text to train on in {root}. Make it with: {MAKE_COMMAND}")
    manifest = _read_manifest(root)
    return TokenisedText(root / kind, KINDS[kind].specials, manifest["kinds"][kind]["pieces"])


def _of_folder(folder: Path) -> tuple[str, Callable[[], Corpus], Path]:
    """(key, how to read it, where its tokens belong) of a folder of text files."""
    files = text_corpus.text_files(folder)
    key = text_corpus.digest(folder, files)
    return key, lambda: text_corpus.text_folder(folder, files), paths.data_dir(f"text-{key}")


def _read_manifest(root: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((root / _MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{root / _MANIFEST} cannot be read as a description of tokenised text: {error!r}.") from None
    if version != FORMAT:
        raise InputError(f"{root} was made by another version of this package. Delete it, then run: {MAKE_COMMAND}")
    return manifest


def _holds(root: Path, key: str) -> bool:
    """Whether `root` is there, with the text of `key`. Raises InputError when it holds anything else."""
    if root.is_dir() and (root / _MANIFEST).exists():
        manifest = _read_manifest(root)
        if manifest["key"] != key:
            raise InputError(f"{root} holds other text: {manifest['source']}. Nothing was changed. Give another folder or delete it.")
        return True
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(f"{root} is there and holds no tokenised text; nothing was changed. Give an empty folder, or a new one.")
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes text in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(root: Path, key: str, corpus: Corpus) -> None:
    for leftover in root.parent.glob(f".{root.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = root.parent / f".{root.name}.{os.getpid()}.tmp"
    try:
        documents = dict(zip(SPLITS, corpus.split(), strict=True))
        kinds = {name: _write_kind(temporary / name, name, documents) for name in KINDS}
        manifest = {"format": FORMAT, "key": key, "source": corpus.source, "characters": corpus.characters, "kinds": kinds}
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        temporary.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_kind(folder: Path, name: str, documents: dict[str, list[str]]) -> dict[str, Any]:
    """Train a tokenizer on the training documents, and write it with the tokens of both splits."""
    folder.mkdir(parents=True)
    kind = KINDS[name]
    tokenizer = kind.train(documents["train"])
    counts = {}
    for split, texts in documents.items():
        tokens = text_tokenizers.encode(tokenizer, texts, kind.specials.end)
        np.save(folder / f"{split}.npy", tokens)
        counts[split] = len(tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"pieces": tokenizer.get_vocab_size(), "tokens": counts}
