"""Tokenised text with each of the two kinds of vocabulary."""

from __future__ import annotations

from pathlib import Path

from gallery_lib.data.text import tokenized as text
from gallery_lib.data.text.tokenized import TokenisedText


def wordpiece(prepared: Path) -> TokenisedText:
    return text.find(str(prepared), "wordpiece")


def byte_bpe(prepared: Path) -> TokenisedText:
    return text.find(str(prepared), "byte-bpe")
