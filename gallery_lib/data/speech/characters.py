"""Vocabulary of characters for transcripts, and conversion between text and token numbers.

The vocabulary is made from training transcripts, the most frequent character first. A character
that is missing from the training transcripts becomes UNKNOWN. Corpora mark words by spaces between
Chinese or Japanese characters; these spaces are dropped. Other spaces are characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gallery_lib.data.folders import printable, some
from gallery_lib.errors import InputError

END, BEGIN, UNKNOWN = 0, 1, 2
_SPECIAL_TOKENS = 3
_UNWRITABLE = "\N{REPLACEMENT CHARACTER}"

_UNSPACED = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_MARKED_WORD = re.compile(rf"(?<={_UNSPACED}) (?={_UNSPACED})")


def tidy(transcript: str) -> str:
    """Return `transcript` in Unicode form NFC (composed accents) with single spaces.

    Spaces between Chinese or Japanese characters, which are written without spaces, are dropped.
    """
    return _MARKED_WORD.sub("", " ".join(unicodedata.normalize("NFC", transcript).split()))


def unknown_notice(
    transcripts: Iterable[str], characters: Characters, where: Path
) -> tuple[str, ...]:
    """Return one line that names the characters of tidy `transcripts` that are unknown, if any.

    `where` is the folder of the transcripts.
    """
    counts = Counter("".join(transcripts))
    unknown = {c: count for c, count in counts.items() if characters.encode(c) == [UNKNOWN]}
    if not unknown:
        return ()
    return (
        f"{sum(unknown.values())} of {counts.total()} characters in the transcripts of "
        f"{printable(where)} are not in train/, and count as unknown: {some(sorted(unknown))}",
    )


class Characters:
    """Vocabulary of a model: three special tokens (END, BEGIN, UNKNOWN), then `characters`."""

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = list(characters)
        self._number = {
            character: number for number, character in enumerate(self.characters, _SPECIAL_TOKENS)
        }

    @classmethod
    def of(cls, transcripts: Iterable[str], size: int, where: object) -> Characters:
        """Return the vocabulary of `transcripts`, which `tidy` has returned.

        Raises:
            InputError: if the vocabulary needs more than `size` tokens; the message names `where`.
        """
        counts = Counter("".join(transcripts))
        room = size - _SPECIAL_TOKENS
        if len(counts) > room:
            raise InputError(
                f"The transcripts in {where} have {len(counts)} different characters, and the "
                f"model has room for {room}. Leave out transcripts with rare characters, or give a "
                "model of your own a larger vocabulary (FILE.py:NAME).",
                parameter="data_dir",
            )
        return cls(sorted(counts, key=lambda character: (-counts[character], character)))

    def __len__(self) -> int:
        return _SPECIAL_TOKENS + len(self.characters)

    def encode(self, transcript: str) -> list[int]:
        """Return the token numbers of the transcript's characters, without BEGIN and END."""
        return [self._number.get(character, UNKNOWN) for character in transcript]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens` up to END, with U+FFFD for tokens without a character."""
        text = []
        for token in tokens:
            if token == END:
                break
            known = _SPECIAL_TOKENS <= token < len(self)
            text.append(self.characters[token - _SPECIAL_TOKENS] if known else _UNWRITABLE)
        return "".join(text)
