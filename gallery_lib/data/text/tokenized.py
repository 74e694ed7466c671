"""Tokenised text: made once from a corpus, then memory-mapped as arrays of token ids.

`prepare` makes a folder of it (token_files.py). `find` returns the tokens for a `data_dir`; it
tokenises a folder of text files on first use. `corpus.py` supplies the text, `tokenizers.py`
defines the tokens, and `masking.py` makes training samples from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gallery_lib.data.folder_walk import printable
from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import token_files
from gallery_lib.data.text import tokenizers as text_tokenizers
from gallery_lib.data.text.corpus import Corpus
from gallery_lib.data.text.tokenizers import KINDS, Specials
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system import paths
from gallery_lib.system.files import locked

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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

        Each document ends with `specials.end`.

        Raises:
            InputError: for a file that is missing, truncated, or of another dtype or shape.
        """
        return token_files.read_tokens(self.folder / f"{split}.npy", self.counts[split])

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
    is_new = False
    try:
        if not _holds(root, key):
            root.parent.mkdir(parents=True, exist_ok=True)
            with locked(root.parent), nullcontext() if threads else text_tokenizers.one_thread():
                if not _holds(root, key):  # another process may have written it before the lock
                    token_files.write(root, key, make())
                    is_new = True
    except OSError as error:
        raise RunFailed(
            f"Could not write the tokenised text in {printable(root)}: {error}. "
            "Free some space, or give another folder."
        ) from error
    manifest = token_files.read_manifest(root)
    if not is_new:
        token_files.refuse_damage(root, manifest)
    tokens = {name: kind["tokens"] for name, kind in manifest["kinds"].items()}
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
    if data_dir and not token_files.has_manifest(root):
        prepared = prepare(root, threads=False)
        root, notices = prepared.root, prepared.notices
    if not token_files.has_manifest(root):
        raise InputError(
            f"There is no text to train on in {printable(root)}. "
            f"Make it with: {token_files.MAKE_COMMAND}",
            parameter="data_dir",
        )
    entry = token_files.read_manifest(root)["kinds"][kind]
    return TokenisedText(
        root / kind, KINDS[kind].specials, entry["pieces"], entry["tokens"], notices
    )


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


def _holds(root: Path, key: str) -> bool:
    """Return whether `root` holds the tokenised text of `key`; False if it is absent or empty.

    Raises:
        InputError: when `root` holds anything else.
    """
    if root.is_dir() and (root / token_files.MANIFEST).exists():
        manifest = token_files.read_manifest(root)
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
