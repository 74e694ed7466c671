"""Text for language models, without a download: collected, tokenised once, then memory-mapped.

    ROOT/made.json                                         what it was made of
    ROOT/wordpiece/tokenizer.json  train.npy  held_out.npy      uint16 [tokens]
    ROOT/byte-bpe/…                                        the same text, other tokens

`prepare` writes such a folder, completely or not at all (`mock_folder.py`). `find` returns the
tokens for a `data_dir`; it tokenises a folder of text files on first use. Without a folder the text
is that of Python's standard library. Every Python installation holds megabytes of English:
docstrings, comments and messages, and the chapters of the language reference that `help()` prints.
Code is left out, and so are repeated paragraphs such as licences.

The `tokenizers` library trains BERT's WordPiece and BART's byte-level BPE in seconds. The same text
gives the same tokens with the same ids. The library's WordPiece trainer does not guarantee this: it
numbers pieces inside words in hash-map order, and ties between merges follow the numbers
(tokenizers issue 1794). The trainer therefore gets the characters inside words in a fixed order.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import numpy as np

from gallery_lib.data import mock_folder
from gallery_lib.data.folders import LeftOut, existing, printable, read_bytes, read_text, walk
from gallery_lib.data.mock_folder import Made
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.system.files import atomic_write

if TYPE_CHECKING:
    from tokenizers import Tokenizer


MINIMUM_CHARACTERS = 20_000  # less text gives neither a vocabulary nor a held-out part
HELD_OUT_EVERY = 10  # interval of held-out documents: 10 holds out every tenth

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_COMMENT_BLOCK = re.compile(r"(?:^[ \t]*#.*\n)+", re.MULTILINE)
_COMMENT_MARK = re.compile(r"^[ \t]*#+[ \t]?", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n\s*\n")
_NEITHER_LETTER_NOR_SPACE = re.compile(r"[^A-Za-z ]+")


Corpus = list[str]  # documents in a fixed order, with one paragraph per line


def split_corpus(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Return (training documents, held-out documents).

    Long documents are first cut into parts. Every tenth part is held out.
    """
    characters = sum(map(len, corpus))
    smallest = MINIMUM_CHARACTERS // HELD_OUT_EVERY
    length = min(50_000, max(smallest, characters // (2 * HELD_OUT_EVERY)))
    parts = [part for document in corpus for part in _parts(document, length)]
    held_out = parts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return [part for number, part in enumerate(parts, 1) if number % HELD_OUT_EVERY], held_out


def default_corpus() -> Corpus:
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


SPLITS = ("train", "held_out")
MAKE_COMMAND = "python3 data_prep/text.py"
_TOKENIZER = "tokenizer.json"
# maximum size of a trained vocabulary, special tokens included; a short text may give fewer
PIECES = 8000
# maximum number of characters that WordPiece knows; a word with any other is unknown
_ALPHABET = 1000
_CHUNK = 64  # documents encoded at a time: an encoding takes much more memory than its ids


@dataclass(frozen=True)
class Specials:
    """Special tokens in the order of their ids, and the id of each role."""

    tokens: tuple[str, ...]
    pad: int
    unknown: int
    start: int
    end: int
    mask: int


@dataclass(frozen=True)
class Kind:
    """Kind of tokenizer: its special tokens and the function that trains it on documents."""

    specials: Specials
    train: Callable[[Sequence[str]], Tokenizer]


def _wordpiece(documents: Sequence[str]) -> Tokenizer:
    """Train BERT's WordPiece on lower-cased words.

    Source: Schuster and Nakajima, "Japanese and Korean Voice Search", 2012.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(normalizer.normalize_str(document))
    alphabet = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))[
        :_ALPHABET
    ]
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    special = _WORDPIECE.tokens
    trainer = trainers.WordPieceTrainer(
        vocab_size=PIECES,
        special_tokens=[*special, *(f"##{character}" for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    trained = Tokenizer(
        models.WordPiece(tokenizer.get_vocab(), unk_token=special[_WORDPIECE.unknown])
    )
    trained.normalizer, trained.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    trained.decoder = decoders.WordPiece()
    trained.add_special_tokens(list(special))
    return trained


def _byte_bpe(documents: Sequence[str]) -> Tokenizer:
    """Train the byte-level BPE of GPT-2 and BART; UTF-8 bytes leave no text unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        min_frequency=2,
        special_tokens=list(_BYTE_BPE.tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


_WORDPIECE = Specials(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), pad=0, unknown=1, start=2, end=3, mask=4
)
_BYTE_BPE = Specials(
    ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), start=0, pad=1, end=2, unknown=3, mask=4
)

KINDS = {"wordpiece": Kind(_WORDPIECE, _wordpiece), "byte-bpe": Kind(_BYTE_BPE, _byte_bpe)}


def encode(tokenizer: Tokenizer, documents: Sequence[str], end: int) -> np.ndarray:
    """Return the concatenated ids of all documents, each followed by `end`: uint16 [tokens].

    Text that looks like a special token is encoded as ordinary text.
    """
    tokenizer.encode_special_tokens = True
    parts = [np.empty(0, np.uint16)]
    for start in range(0, len(documents), _CHUNK):
        for encoding in tokenizer.encode_batch(
            list(documents[start : start + _CHUNK]), add_special_tokens=False
        ):
            parts.append(np.array([*encoding.ids, end], np.uint16))
    return np.concatenate(parts)


@dataclass(frozen=True)
class TokenisedText:
    """Text in one kind of tokens, in a folder that `prepare` wrote.

    `pieces` is the size of the trained vocabulary. `notices` holds lines about text files that were
    left out.
    """

    folder: Path
    specials: Specials
    pieces: int
    notices: tuple[str, ...] = ()

    def tokens(self, split: str) -> np.ndarray:
        """Return all tokens of `train` or `held_out`, memory-mapped: uint16 [tokens].

        Each document ends with `specials.end`.
        """
        tokens: np.ndarray = np.load(self.folder / f"{split}.npy", mmap_mode="r")
        return tokens

    def tokenizer(self) -> Tokenizer:
        """Return the trained tokenizer, which also decodes token ids to text."""
        return _tokenizer(self.folder)


def _tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / _TOKENIZER))


def prepare(data_dir: Path | str | None = None, root: Path | str | None = None) -> Made:
    """Train both tokenizers on text and write the tokenised text to `root`.

    `data_dir` is a folder of text files, by default the text of `default_corpus()`, and `root` the
    output, by default the folder that `find` reads.

    Raises:
        InputError: The text is unfit, or `root` holds something else.
        RunFailed: Writing failed.
    """
    key, folder = "default", paths.data_dir("english")
    make_corpus: Callable[[], Corpus] = default_corpus
    notices: tuple[str, ...] = ()
    if data_dir is not None:
        source = Path(data_dir).expanduser().absolute()
        files, left_out = text_files(source)
        key = digest(source, files)
        folder, notices = paths.data_dir(f"tokens-{key}"), left_out.notice(source)
        make_corpus = functools.partial(text_folder, source, files)
    root = folder if root is None else Path(root).expanduser()
    # Unfit text is refused before anything is written.
    corpus = [] if mock_folder.is_made(root) else make_corpus()
    made = mock_folder.make(
        root,
        {"kind": "tokenised text", "key": key},
        {f"{name}/{_TOKENIZER}": (name,) for name in KINDS},
        functools.partial(_write_kind, corpus),
        progress=False,
    )
    return dataclasses.replace(made, notices=notices)


def find(data_dir: str | None, kind: str) -> TokenisedText:
    """Return the tokens of `kind` for `data_dir`.

    `data_dir` is a folder that `prepare` wrote, a folder of text files, or None for the default
    text. The first call for text files tokenises them into the cache.

    Raises:
        InputError: when there is no text, or no suitable text.
    """
    root = Path(data_dir).expanduser().absolute() if data_dir else paths.data_dir("english")
    notices: tuple[str, ...] = ()
    if not mock_folder.is_made(root):
        if not data_dir:
            raise InputError(
                f"There is no text to train on in {printable(root)}. Make it with: {MAKE_COMMAND}",
                parameter="data_dir",
            )
        # One thread: this process will fork, of which `tokenizers` warns after it has used threads.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        made = prepare(root)
        root, notices = made.root, made.notices
    folder = root / kind
    pieces = _tokenizer(folder).get_vocab_size()
    return TokenisedText(folder, KINDS[kind].specials, pieces, notices)


def _write_kind(corpus: Corpus, path: Path, name: str) -> None:
    folder, kind = path.parent, KINDS[name]
    documents = dict(zip(SPLITS, split_corpus(corpus), strict=True))
    tokenizer = kind.train(documents["train"])
    for split, texts in documents.items():
        np.save(folder / f"{split}.npy", encode(tokenizer, texts, kind.specials.end))
    with atomic_write(path) as file:
        file.write(tokenizer.to_str())
