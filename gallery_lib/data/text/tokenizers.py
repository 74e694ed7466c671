"""Sub-word tokenizers trained on a given text: BERT's WordPiece and BART's byte-level BPE.

The `tokenizers` library trains them in seconds, with the special tokens of BERT and BART. The same
text gives the same tokens with the same ids. The library's WordPiece trainer does not guarantee
this: it numbers pieces inside words in hash-map order, and ties between merges follow the numbers
(tokenizers issue 1794). The trainer therefore gets the characters inside words in a fixed order.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep the `tokenizers` library single-threaded, so that this process can fork afterwards.

    After the library has used threads, it warns about a fork.
    """
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
