"""Tokenised text: made once from a corpus, then memory-mapped as arrays of token ids.

    ROOT/made.json                                         what it was made of
    ROOT/wordpiece/tokenizer.json  train.npy  held_out.npy      uint16 [tokens]
    ROOT/byte-bpe/…                                        the same text, other tokens

`prepare` writes such a folder, completely or not at all (`mock_folder.py`). `find` returns the
tokens for a `data_dir`; it tokenises a folder of text files on first use. `corpus.py` supplies the
text, and `masking.py` makes training samples from the tokens.

The `tokenizers` library trains BERT's WordPiece and BART's byte-level BPE in seconds. The same text
gives the same tokens with the same ids. The library's WordPiece trainer does not guarantee this: it
numbers pieces inside words in hash-map order, and ties between merges follow the numbers
(tokenizers issue 1794). The trainer therefore gets the characters inside words in a fixed order.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gallery_lib.data import mock_folder
from gallery_lib.data.folders import printable
from gallery_lib.data.mock_folder import Made
from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text.corpus import Corpus
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.system.files import atomic_write

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPLITS = ("train", "held_out")
MAKE_COMMAND = "python3 data_prep/text.py"
_TOKENIZER = "tokenizer.json"
PIECES = 8000
"""Maximum size of a trained vocabulary, special tokens included; a short text may give fewer."""
_ALPHABET = 1000
"""Maximum number of characters that WordPiece knows; a word with any other is unknown."""
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

    `data_dir` is a folder of text files, by default the text of `corpus.default()`, and `root` the
    output, by default the folder that `find` reads.

    Raises:
        InputError: The text is unfit, or `root` holds something else.
        RunFailed: Writing failed.
    """
    key, folder = "default", paths.data_dir("english")
    make_corpus: Callable[[], Corpus] = text_corpus.default
    notices: tuple[str, ...] = ()
    if data_dir is not None:
        source = Path(data_dir).expanduser().absolute()
        files, left_out = text_corpus.text_files(source)
        key = text_corpus.digest(source, files)
        folder, notices = paths.data_dir(f"tokens-{key}"), left_out.notice(source)
        make_corpus = functools.partial(text_corpus.text_folder, source, files)
    root = folder if root is None else Path(root).expanduser()
    # Unfit text is refused before anything is written.
    corpus = None if mock_folder.is_made(root) else make_corpus()

    def write(path: Path, name: str) -> None:
        assert corpus is not None
        _write_kind(path.parent, KINDS[name], corpus)

    made = mock_folder.make(
        root,
        {"kind": "tokenised text", "key": key},
        {f"{name}/{_TOKENIZER}": (name,) for name in KINDS},
        write,
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


def _write_kind(folder: Path, kind: Kind, corpus: Corpus) -> None:
    documents = dict(zip(SPLITS, text_corpus.split(corpus), strict=True))
    tokenizer = kind.train(documents["train"])
    for split, texts in documents.items():
        np.save(folder / f"{split}.npy", encode(tokenizer, texts, kind.specials.end))
    with atomic_write(folder / _TOKENIZER) as file:
        file.write(tokenizer.to_str())
