"""Tokenised text on disk: written once from a corpus, then memory-mapped as arrays of token ids.

    ROOT/manifest.json
    ROOT/wordpiece/tokenizer.json  train.npy  held_out.npy      uint16 [tokens]
    ROOT/byte-bpe/…                                             the same text, other tokens

`prepare` writes such a folder under a temporary name and renames it, so a folder is complete or
absent. `find` returns the tokens for a `data_dir`; it tokenises a folder of text files on first
use. `corpus.py` supplies the text, `tokenizers.py` defines the tokens, and `masking.py` makes
training samples from them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
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

from gallery_lib.data.folder_walk import printable
from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenizers as text_tokenizers
from gallery_lib.data.text.corpus import Corpus
from gallery_lib.data.text.tokenizers import KINDS, Specials
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system import paths

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 1
SPLITS = ("train", "held_out")
MAKE_COMMAND = "python3 data_prep/text.py"
_MANIFEST = "manifest.json"
_DEFAULT_KEY = "default"


@dataclass(frozen=True)
class TokenisedText:
    """Text in one kind of tokens, in a folder that `prepare` wrote.

    `pieces` is the size of the trained vocabulary, `counts` the number of tokens by split.
    `notices` holds lines about text files that were left out.
    """

    folder: Path
    specials: Specials
    pieces: int
    counts: dict[str, int]
    notices: tuple[str, ...] = ()

    def tokens(self, split: str) -> np.ndarray:
        """Return all tokens of `train` or `held_out`, memory-mapped: uint16 [tokens].

        Each document ends with `specials.end`. Raises InputError for a file that is missing,
        truncated, or of another dtype or shape.
        """
        return read_tokens(self.folder / f"{split}.npy", self.counts[split])

    def tokenizer(self) -> Tokenizer:
        """Return the trained tokenizer, which also decodes token ids to text."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))


@dataclass(frozen=True)
class Prepared:
    """Result of `prepare`: a folder of tokenised text, its source and its token counts.

    `tokens` holds the number of tokens by kind and split. `made` is False if the folder was there
    already. `seconds` is the duration of the call; `notices` holds lines about files left out.
    """

    root: Path
    source: str
    tokens: dict[str, dict[str, int]]
    made: bool
    seconds: float
    notices: tuple[str, ...] = ()


def prepare(
    data_dir: Path | str | None = None, root: Path | str | None = None, *, threads: bool = True
) -> Prepared:
    """Train both tokenizers on text and write the tokenised text to `root`.

    Text that is tokenised already is verified, not made again.

    Args:
        data_dir: Folder of text files; by default the text of `corpus.default()`.
        root: Output folder; by default the folder that `find` reads.
        threads: False keeps the tokenizers single-threaded, so that the calling process can fork
            afterwards.

    Raises:
        InputError: The text is unfit, `root` holds something else, or its tokens are damaged.
        RunFailed: Writing failed.
    """
    started = time.perf_counter()
    key, make, default_root = _DEFAULT_KEY, text_corpus.default, paths.data_dir("text")
    notices: tuple[str, ...] = ()
    if data_dir is not None:
        key, make, default_root, notices = _of_folder(Path(data_dir).expanduser().absolute())
    root = Path(root).expanduser().absolute() if root is not None else default_root
    made = False
    try:
        if not _holds(root, key):
            root.parent.mkdir(parents=True, exist_ok=True)
            with _locked(root.parent), nullcontext() if threads else text_tokenizers.one_thread():
                if not _holds(root, key):  # another process may have written it before the lock
                    _write(root, key, make())
                    made = True
    except OSError as error:
        raise RunFailed(
            f"Could not write the tokenised text in {printable(root)}: {error}. "
            "Free some space, or give another folder."
        ) from error
    manifest = _read_manifest(root)
    if not made:
        _refuse_damage(root, manifest)
    tokens = {name: kind["tokens"] for name, kind in manifest["kinds"].items()}
    return Prepared(root, manifest["source"], tokens, made, time.perf_counter() - started, notices)


def find(data_dir: str | None, kind: str) -> TokenisedText:
    """Return the tokens of `kind` for `data_dir`.

    `data_dir` is a folder that `prepare` wrote, a folder of text files, or None for the default
    text. The first call for text files tokenises them into the cache. Raises InputError when there
    is no text, or no suitable text.
    """
    root = Path(data_dir).expanduser().absolute() if data_dir else paths.data_dir("text")
    notices: tuple[str, ...] = ()
    if data_dir and not _has_manifest(root):
        prepared = prepare(root, threads=False)
        root, notices = prepared.root, prepared.notices
    if not _has_manifest(root):
        raise InputError(
            f"There is no text to train on in {printable(root)}. Make it with: {MAKE_COMMAND}"
        )
    made = _read_manifest(root)["kinds"][kind]
    return TokenisedText(root / kind, KINDS[kind].specials, made["pieces"], made["tokens"], notices)


def _has_manifest(root: Path) -> bool:
    """Return whether `root` has a manifest.

    A folder without read permission counts as False; the later read of it raises the error.
    """
    try:
        return (root / _MANIFEST).exists()
    except OSError:
        return False


def read_tokens(path: Path, count: int) -> np.ndarray:
    """Return the memory-mapped token ids of a file: uint16 [`count`].

    Raises InputError when the file is missing or holds anything else.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "it is missing")
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or str(error)) from error
    if tokens.dtype != np.uint16 or tokens.shape != (count,):
        raise _damaged(
            path, f"it holds {tokens.dtype} {list(tokens.shape)}, and uint16 [{count}] was written"
        )
    return tokens


def _refuse_damage(root: Path, manifest: dict[str, Any]) -> None:
    """Raise InputError for a file that differs from what was written.

    The check compares dtypes, shapes, largest ids and SHA-256 digests. Older manifests have no
    digests; for these only the other checks run.
    """
    for name, kind in manifest["kinds"].items():
        for split in SPLITS:
            path = root / name / f"{split}.npy"
            tokens = read_tokens(path, kind["tokens"][split])
            if len(tokens) and (largest := int(tokens.max())) >= kind["pieces"]:
                raise _damaged(
                    path,
                    f"it holds the id {largest}, and the vocabulary has {kind['pieces']} pieces",
                )
        for file, digest in kind.get("sha256", {}).items():
            path = root / name / file
            if not path.is_file() or _sha256(path) != digest:
                raise _damaged(path, "it is not what was written")


def make_again(root: Path) -> str:
    """Return an instruction to replace the tokenised text in `root`.

    Text in the gallery's cache is to be deleted and made again. Any other folder stays as it is,
    and the text is made again in a new folder.
    """
    if root.is_relative_to(paths.cache_dir()):
        return f"Delete {printable(root)} and make it again: {MAKE_COMMAND}"
    return f"Make it again in a new folder: {MAKE_COMMAND} --data_dir TEXT_FOLDER --out NEW_FOLDER"


def _damaged(path: Path, reason: str) -> InputError:
    root = path.parent.parent
    return InputError(
        f"The tokenised text {printable(path)} is damaged: {reason}. {make_again(root)}"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_folder(folder: Path) -> tuple[str, Callable[[], Corpus], Path, tuple[str, ...]]:
    """Return (key, function that reads the corpus, default root, notices) for a text folder."""
    files, left_out = text_corpus.text_files(folder)
    key = text_corpus.digest(folder, files)
    notices = (f"left out of {printable(folder)}: {left_out}",) if left_out else ()
    return (
        key,
        lambda: text_corpus.text_folder(folder, files),
        paths.data_dir(f"text-{key}"),
        notices,
    )


def _read_manifest(root: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((root / _MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format"]
        complete = version != FORMAT or all(
            isinstance(manifest["kinds"][kind]["tokens"][split], int)
            and isinstance(manifest["kinds"][kind]["pieces"], int)
            for kind in KINDS
            for split in SPLITS
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{printable(root / _MANIFEST)} cannot be read as a description of tokenised text: "
            f"{error!r}."
        ) from None
    if not complete:
        raise InputError(
            f"{printable(root / _MANIFEST)} is damaged: it does not say how many tokens there are. "
            f"{make_again(root)}"
        )
    if version != FORMAT:
        raise InputError(
            f"{printable(root)} was made by another version of this package. {make_again(root)}"
        )
    return manifest


def _holds(root: Path, key: str) -> bool:
    """Return whether `root` holds the tokenised text of `key`; False if it is absent or empty.

    Raises InputError when `root` holds anything else.
    """
    if root.is_dir() and (root / _MANIFEST).exists():
        manifest = _read_manifest(root)
        if manifest["key"] != key:
            raise InputError(
                f"{printable(root)} holds other text: {manifest['source']}. "
                "Nothing was changed. Give another folder."
            )
        return True
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            f"{printable(root)} is there and holds no tokenised text; nothing was changed. "
            "Give an empty folder, or a new one."
        )
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on `folder`, so that one process at a time writes text there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(root: Path, key: str, corpus: Corpus) -> None:
    for leftover in root.parent.glob(f".{root.name}.*.tmp"):  # left by a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = root.parent / f".{root.name}.{os.getpid()}.tmp"
    try:
        documents = dict(zip(SPLITS, corpus.split(), strict=True))
        kinds = {name: _write_kind(temporary / name, name, documents) for name in KINDS}
        manifest = {
            "format": FORMAT,
            "key": key,
            "source": corpus.source,
            "characters": corpus.characters,
            "kinds": kinds,
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        temporary.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_kind(folder: Path, name: str, documents: dict[str, list[str]]) -> dict[str, Any]:
    """Train a tokenizer on the training documents; write it and the tokens of both splits.

    Return the manifest entry of the kind: vocabulary size, token counts and SHA-256 digests.
    """
    folder.mkdir(parents=True)
    kind = KINDS[name]
    tokenizer = kind.train(documents["train"])
    counts = {}
    for split, texts in documents.items():
        tokens = text_tokenizers.encode(tokenizer, texts, kind.specials.end)
        np.save(folder / f"{split}.npy", tokens)
        counts[split] = len(tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    digests = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    return {"pieces": tokenizer.get_vocab_size(), "tokens": counts, "sha256": digests}
