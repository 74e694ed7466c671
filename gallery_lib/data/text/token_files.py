"""Files of tokenised text: written as a whole folder, and read with every damage named.

    ROOT/manifest.json
    ROOT/wordpiece/tokenizer.json  train.npy  held_out.npy      uint16 [tokens]
    ROOT/byte-bpe/…                                             the same text, other tokens

A folder is written under a temporary name and renamed, so it is complete or absent.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from gallery_lib.data.folder_walk import printable
from gallery_lib.data.text import tokenizers as text_tokenizers
from gallery_lib.data.text.corpus import Corpus
from gallery_lib.data.text.tokenizers import KINDS
from gallery_lib.errors import InputError
from gallery_lib.system import paths

FORMAT = 1
SPLITS = ("train", "held_out")
MAKE_COMMAND = "python3 data_prep/text.py"
MANIFEST = "manifest.json"


def has_manifest(root: Path) -> bool:
    """Return whether `root` has a manifest.

    A folder without read permission counts as False; the later read of it raises the error.
    """
    try:
        return (root / MANIFEST).exists()
    except OSError:
        return False


def read_manifest(root: Path) -> dict[str, Any]:
    """Return the manifest of a folder.

    Raises:
        InputError: if it is missing, damaged or of another format.
    """
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format"]
        complete = version != FORMAT or all(
            isinstance(manifest["kinds"][kind]["tokens"][split], int)
            and isinstance(manifest["kinds"][kind]["pieces"], int)
            for kind in KINDS
            for split in SPLITS
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{printable(root / MANIFEST)} cannot be read as a description of tokenised text: "
            f"{error!r}.",
            parameter=str(root / MANIFEST),
        ) from None
    if not complete:
        raise InputError(
            f"{printable(root / MANIFEST)} is damaged: it does not say how many tokens there are. "
            f"{make_again(root)}",
            parameter=str(root / MANIFEST),
        )
    if version != FORMAT:
        raise InputError(
            f"{printable(root)} was made by another version of this package. {make_again(root)}",
            parameter=str(root / MANIFEST),
        )
    return manifest


def read_tokens(path: Path, count: int) -> np.ndarray:
    """Return the memory-mapped token ids of a file: uint16 [`count`].

    Raises:
        InputError: when the file is missing or holds anything else.
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


def refuse_damage(root: Path, manifest: dict[str, Any]) -> None:
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
        f"The tokenised text {printable(path)} is damaged: {reason}. {make_again(root)}",
        parameter=str(path),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(root: Path, key: str, corpus: Corpus) -> None:
    """Tokenise `corpus` and write it to `root` as the text of `key`.

    Removes what a killed process has left. The caller keeps other processes from writing there.
    """
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
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
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
