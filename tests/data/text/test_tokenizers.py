"""Vocabularies are the same for the same text, and tokens decode to their text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.text.vocabularies import byte_bpe, wordpiece
from made_up_text import documents

from gallery_lib.data.text import corpus as text_corpus
from gallery_lib.data.text import tokenizers as text_tokenizers


@pytest.mark.parametrize("kind", text_tokenizers.KINDS)
def test_the_same_text_gives_the_same_vocabulary(kind: str) -> None:
    text = documents(count=3)
    trained = [text_tokenizers.KINDS[kind].train(text).to_str() for _ in range(3)]
    assert trained[0] == trained[1] == trained[2]


@pytest.mark.parametrize("kind", text_tokenizers.KINDS)
def test_special_tokens_have_the_ids_that_the_models_are_configured_with(kind: str) -> None:
    special = text_tokenizers.KINDS[kind].specials
    tokenizer = text_tokenizers.KINDS[kind].train(documents(count=2))
    assert [tokenizer.token_to_id(token) for token in special.tokens] == [0, 1, 2, 3, 4]
    pad, start, end = (0, 2, 3) if kind == "wordpiece" else (1, 0, 2)
    assert (special.pad, special.start, special.end) == (pad, start, end)
    assert special.tokens[special.mask] in ("[MASK]", "<mask>") and special.tokens[special.pad] in (
        "[PAD]",
        "<pad>",
    )


@pytest.mark.parametrize("kind", text_tokenizers.KINDS)
def test_a_special_token_in_the_text_is_text(kind: str) -> None:
    special = text_tokenizers.KINDS[kind].specials
    document = "the word " + " and ".join(special.tokens) + " is a word"
    tokenizer = text_tokenizers.KINDS[kind].train([document] * 3)
    ids = text_tokenizers.encode(tokenizer, [document], special.end)
    assert not set(ids[:-1].tolist()) & set(range(5)) and ids[-1] == special.end


def test_tokens_decode_to_the_text_they_were_made_of(text_files: Path, prepared: Path) -> None:
    train, held_out = text_corpus.text_folder(
        text_files, text_corpus.text_files(text_files)[0]
    ).split()
    tokens = byte_bpe(prepared)
    for split, texts in (("train", train), ("held_out", held_out)):
        decoded = tokens.tokenizer().decode(
            tokens.tokens(split).tolist(), skip_special_tokens=False
        )
        assert decoded == "".join(f"{document}</s>" for document in texts)
    words = wordpiece(prepared)
    decoded = words.tokenizer().decode(words.tokens("held_out").tolist(), skip_special_tokens=True)
    assert decoded.replace(" ", "") == "".join(held_out).lower().replace(" ", "").replace("\n", "")
    assert not np.isin(words.tokens("held_out"), words.specials.unknown).any()
