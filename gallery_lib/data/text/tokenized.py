"""Tokenised text: made once from a corpus, then memory-mapped as arrays of token ids.

    ROOT/manifest.json
    ROOT/wordpiece/tokenizer.json  train.npy  held_out.npy      uint16 [tokens]
    ROOT/byte-bpe/…                                             the same text, other tokens

`prepare` writes such a folder under a temporary name and renames it, so it is complete or absent.
`find` returns the tokens for a `data_dir`; it tokenises a folder of text files on first use.
`corpus.py` supplies the text, `tokenizers.py` defines the tokens, and `masking.py` makes training
samples from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gallery_lib.data.folders import printable
from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenizers as text_tokenizers
from gallery_lib.data.text.corpus import Corpus
from gallery_lib.data.text.tokenizers import KINDS, Specials
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system import paths
from gallery_lib.system.files import locked

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 1
SPLITS = ("train", "held_out")
MAKE_COMMAND = "python3 data_prep/text.py"
MANIFEST = "manifest.json"


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

        Each document ends with `specials.end`.

        Raises:
            InputError: for a file that is missing, truncated, or of another dtype or shape.
        """
        path, count = self.folder / f"{split}.npy", self.counts[split]
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise damaged(path, getattr(error, "strerror", None) or str(error)) from error
        if tokens.dtype != np.uint16 or tokens.shape != (count,):
            what = f"{tokens.dtype} {list(tokens.shape)}, and uint16 [{count}] was written"
            raise damaged(path, f"it holds {what}")
        return tokens

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

    def __str__(self) -> str:
        counts = "; ".join(
            f"{kind}: {count['train']:,} + {count['held_out']:,}"
            for kind, count in self.tokens.items()
        )
        state = f"made now in {self.seconds:.1f} s" if self.made else "complete already"
        first = (
            f"{printable(self.root)}: {self.source}; training and held-out tokens, {counts}; "
            f"{state}"
        )
        return "\n".join([first, *self.notices])


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
    key = "default"
    notices: tuple[str, ...] = ()
    make: Callable[[], Corpus] = text_corpus.default
    default_root = paths.data_dir("text")
    if data_dir is not None:
        folder = Path(data_dir).expanduser().absolute()
        files, left_out = text_corpus.text_files(folder)
        key = text_corpus.digest(folder, files)
        make = lambda: text_corpus.text_folder(folder, files)  # noqa: E731
        default_root = paths.data_dir(f"text-{key}")
        notices = (f"left out of {printable(folder)}: {left_out}",) if left_out else ()
    root = Path(root).expanduser().absolute() if root is not None else default_root
    is_new = False
    try:
        if not _holds(root, key):
            root.parent.mkdir(parents=True, exist_ok=True)
            with locked(root.parent), nullcontext() if threads else text_tokenizers.one_thread():
                if not _holds(root, key):  # another process may have written it before the lock
                    _write(root, key, make())
                    is_new = True
    except OSError as error:
        raise RunFailed(
            f"Could not write the tokenised text in {printable(root)}: {error}. "
            "Free some space, or give another folder."
        ) from error
    kinds = (manifest := _read_manifest(root))["kinds"]
    for name in {} if is_new else kinds:
        for file, digest in kinds[name]["sha256"].items():
            path = root / name / file
            if not path.is_file() or _sha256(path) != digest:
                raise damaged(path, "it is not what was written")
    tokens = {name: kind["tokens"] for name, kind in kinds.items()}
    return Prepared(
        root, manifest["source"], tokens, is_new, time.perf_counter() - started, notices
    )


def find(data_dir: str | None, kind: str) -> TokenisedText:
    """Return the tokens of `kind` for `data_dir`.

    `data_dir` is a folder that `prepare` wrote, a folder of text files, or None for the default
    text. The first call for text files tokenises them into the cache.

    Raises:
        InputError: when there is no text, or no suitable text.
    """
    root = Path(data_dir).expanduser().absolute() if data_dir else paths.data_dir("text")
    notices: tuple[str, ...] = ()
    if not _has_manifest(root):
        if not data_dir:
            raise InputError(
                f"There is no text to train on in {printable(root)}. Make it with: {MAKE_COMMAND}",
                parameter="data_dir",
            )
        prepared = prepare(root, threads=False)
        root, notices = prepared.root, prepared.notices
    entry = _read_manifest(root)["kinds"][kind]
    return TokenisedText(
        root / kind, KINDS[kind].specials, entry["pieces"], entry["tokens"], notices
    )


def _has_manifest(root: Path) -> bool:
    """Return whether `root` has a manifest; a folder that may not be read has none."""
    with contextlib.suppress(OSError):
        return (root / MANIFEST).exists()
    return False


def _read_manifest(root: Path) -> dict[str, Any]:
    """Return the manifest of a folder; refuse one that is damaged or of another format."""
    path = root / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise damaged(path, "it is of another version of this package")
        for kind in KINDS:
            entry = manifest["kinds"][kind]
            assert isinstance(entry["pieces"], int) and isinstance(entry["sha256"], dict)
            assert all(isinstance(entry["tokens"][split], int) for split in SPLITS)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, f"it does not describe tokenised text, {error!r}") from None
    return manifest


def _holds(root: Path, key: str) -> bool:
    """Return whether `root` holds the tokenised text of `key`; refuse anything else in it."""
    if _has_manifest(root):
        manifest = _read_manifest(root)
        if manifest["key"] != key:
            raise InputError(
                f"{printable(root)} holds other text: {manifest['source']}. "
                "Nothing was changed. Give another folder.",
                parameter="out",
            )
        return True
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            f"{printable(root)} is there and holds no tokenised text; nothing was changed. "
            "Give an empty folder, or a new one.",
            parameter="out",
        )
    return False


def damaged(path: Path, reason: str) -> InputError:
    """Return the error about a damaged file, with what to do.

    Text in the gallery's cache is to be deleted and made again. Any other folder stays as it is,
    and the text is made again in a new folder.
    """
    root = path.parent if path.name == MANIFEST else path.parent.parent
    again = f"Delete {printable(root)} and make it again: {MAKE_COMMAND}"
    if not root.is_relative_to(paths.cache_dir()):
        options = "--data_dir TEXT_FOLDER --out NEW_FOLDER"
        again = f"Make it again in a new folder: {MAKE_COMMAND} {options}"
    return InputError(
        f"The tokenised text {printable(path)} is damaged: {reason}. {again}", parameter=str(path)
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(root: Path, key: str, corpus: Corpus) -> None:
    """Tokenise `corpus` and write it to `root` as the text of `key`; the caller holds a lock."""
    for leftover in root.parent.glob(f".{root.name}.*.tmp"):  # left by a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = root.parent / f".{root.name}.{os.getpid()}.tmp"
    try:
        documents = dict(zip(SPLITS, corpus.split(), strict=True))
        manifest = {
            "format": FORMAT,
            "key": key,
            "source": corpus.source,
            "characters": corpus.characters,
            "kinds": {name: _write_kind(temporary / name, name, documents) for name in KINDS},
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        temporary.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_kind(folder: Path, name: str, documents: dict[str, list[str]]) -> dict[str, Any]:
    """Train a tokenizer, write it and the tokens of both splits, and return its manifest entry."""
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
