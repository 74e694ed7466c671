"""Training text without a download, from Python's standard library or a folder of text files.

Every Python installation holds megabytes of English: docstrings, comments and messages of the
standard library, and the chapters of the language reference that `help()` prints. Code is left
out, and so are repeated paragraphs such as licences.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

from gallery_lib.data.folders import LeftOut, existing, printable, read_bytes, read_text, walk
from gallery_lib.errors import InputError

MINIMUM_CHARACTERS = 20_000
"""Less text gives neither a vocabulary nor a held-out part."""
HELD_OUT_EVERY = 10
"""Interval of held-out documents: 10 holds out every tenth."""

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_COMMENT_BLOCK = re.compile(r"(?:^[ \t]*#.*\n)+", re.MULTILINE)
_COMMENT_MARK = re.compile(r"^[ \t]*#+[ \t]?", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n\s*\n")
_NEITHER_LETTER_NOR_SPACE = re.compile(r"[^A-Za-z ]+")


Corpus = list[str]
"""Documents in a fixed order, with one paragraph per line."""


def split(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Return (training documents, held-out documents).

    Long documents are first cut into parts. Every tenth part is held out.
    """
    characters = sum(map(len, corpus))
    smallest = MINIMUM_CHARACTERS // HELD_OUT_EVERY
    length = min(50_000, max(smallest, characters // (2 * HELD_OUT_EVERY)))
    parts = [part for document in corpus for part in _parts(document, length)]
    held_out = parts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return [part for number, part in enumerate(parts, 1) if number % HELD_OUT_EVERY], held_out


def default() -> Corpus:
    """Return the corpus of Python's standard library, whose sources have to be installed."""
    folder = Path(sysconfig.get_path("stdlib"))
    return _large_enough(standard_library(folder), f"The sources of Python's library in {folder}")


def standard_library(folder: Path) -> Corpus:
    """Return the prose of the Python sources below `folder`, one document per module.

    The documents are sorted by path. A paragraph that occurs again is left out.
    """
    seen: set[str] = set()
    documents = []
    for path in _modules(folder):
        new = [text for text in _prose(path) if text not in seen]
        seen.update(new)
        if new:
            documents.append("\n".join(new))
    return documents


def _modules(folder: Path) -> list[Path]:
    modules = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        modules += [Path(place, name) for name in files if name.endswith(".py")]
    return sorted(modules, key=lambda path: path.relative_to(folder).as_posix())


def _prose(path: Path) -> Iterator[str]:
    """Yield the English paragraphs of a Python source; none if it cannot be read or compiled."""
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources have invalid escape sequences
            code = compile(source, str(path), "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError):
        return
    texts = [
        *_strings(code),
        *(_COMMENT_MARK.sub("", block) for block in _COMMENT_BLOCK.findall(source)),
    ]
    for text in texts:
        yield from filter(_is_prose, _paragraphs(text))


def _strings(code: CodeType) -> Iterator[str]:
    """Yield docstrings and all other string constants, roughly in source order."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _strings(constant)


def _is_prose(paragraph: str) -> bool:
    # six words at least, four fifths letters or spaces, and no interactive session
    if paragraph.count(" ") < 5 or paragraph.startswith(">>>"):
        return False
    return len(_NEITHER_LETTER_NOR_SPACE.sub("", paragraph)) >= 0.8 * len(paragraph)


def text_files(root: Path) -> tuple[list[Path], LeftOut]:
    """Return the sorted `*.txt` files below `root`, at least one, and what is left out."""
    root = existing(root, "text folder", "Give a folder with .txt files in it (UTF-8).")
    files, left_out = walk(root, (".txt",))
    if not files:
        raise InputError(
            f"The text folder {printable(root)} has no .txt files in it or below. It holds "
            f"{left_out if left_out.counts else 'nothing'}.",
            parameter="data_dir",
        )
    return sorted(root / file for file in files), left_out


def digest(root: Path, files: Iterable[Path]) -> str:
    """Return 16 hexadecimal digits that change with the name or content of any file."""
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(root).as_posix()}\0".encode("utf-8", "surrogateescape"))
        total.update(hashlib.sha256(read_bytes(path)).digest())
    return total.hexdigest()[:16]


def text_folder(root: Path, files: Iterable[Path]) -> Corpus:
    """Return a corpus with one document per file of `text_files(root)`.

    Raises:
        InputError: for a file that cannot be read or is not UTF-8, and for fewer than
            `MINIMUM_CHARACTERS` characters in all.
    """
    documents = ("\n".join(_paragraphs(read_text(path))) for path in files)
    corpus = list(filter(None, documents))
    return _large_enough(corpus, f"The .txt files of {printable(root)}")


def _large_enough(corpus: Corpus, where: str) -> Corpus:
    if (characters := sum(map(len, corpus))) < MINIMUM_CHARACTERS:
        raise InputError(
            f"{where} hold {characters} characters of text; at least {MINIMUM_CHARACTERS} "
            "are needed to train a vocabulary and hold a part out. Give a folder with more text.",
            parameter="data_dir",
        )
    return corpus


def _paragraphs(text: str) -> list[str]:
    return [joined for block in _BLANK_LINES.split(text) if (joined := " ".join(block.split()))]


def _parts(document: str, length: int) -> Iterator[str]:
    """Yield parts of at most `length` characters, cut between paragraphs, else between words."""
    start = 0
    while len(document) - start > length:
        end = max(document.rfind("\n", start + 1, start + length), 0) or document.rfind(
            " ", start + 1, start + length
        )
        end = end if end > start else start + length
        yield document[start:end].strip()
        start = end
    if rest := document[start:].strip():
        yield rest
