"""Text in a made-up language with learnable structure, the same on every machine.

Function words are English. Nouns, verbs and adjectives are random syllables; a few are common and
most are rare, as in real languages. The topic of a document selects part of the vocabulary, and
each verb agrees in number with its subject. A model can therefore learn word frequencies first,
then grammar, then topics.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

_ONSETS = [*"bdfghklmnprstvw", "br", "fl", "gr", "pl", "sh", "sk", "st", "th", "tr"]
_VOWELS = [*"aeiou", "ai", "ea", "oo", "ou"]
_CODAS = [*"bdgklmnprt", "nd", "ng", "nt", "rk", "rn", "st", "th"]
_PREPOSITIONS = [
    "in",
    "on",
    "under",
    "over",
    "with",
    "without",
    "behind",
    "before",
    "after",
    "from",
    "near",
    "of",
    "for",
    "against",
]
_CONJUNCTIONS = ["and", "but", "because", "while", "when", "although", "so", "if"]
_ADVERBS = [
    "often",
    "rarely",
    "quickly",
    "slowly",
    "always",
    "never",
    "sometimes",
    "again",
    "together",
    "apart",
]

NOUNS, VERBS, ADJECTIVES = 400, 160, 120
TOPIC_SHARE = 5
"""Inverse share of a word class that a topic uses: 5 means one word in five.

The most common words belong to every topic.
"""


class _Words:
    """Words of one class, most common first.

    Frequencies follow Zipf's law: word n, counted from 1, has weight 1 / (n + 1).
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self._cumulative = list(itertools.accumulate(1 / rank for rank in range(2, len(words) + 2)))

    def pick(self, rng: random.Random) -> str:
        """Return a random word, drawn by frequency."""
        return rng.choices(self.words, cum_weights=self._cumulative)[0]

    def of_topic(self, rng: random.Random) -> _Words:
        """Return the words of a random topic: the most common 5 %, and a sample of the rest."""
        common = len(self.words) // 20
        return _Words(
            [*self.words[:common], *rng.sample(self.words[common:], len(self.words) // TOPIC_SHARE)]
        )


@dataclass(frozen=True)
class _Lexicon:
    """Nouns, verbs and adjectives of the whole language or of one topic."""

    nouns: _Words
    verbs: _Words
    adjectives: _Words

    def of_topic(self, rng: random.Random) -> _Lexicon:
        """Return the lexicon of a random topic."""
        return _Lexicon(
            self.nouns.of_topic(rng), self.verbs.of_topic(rng), self.adjectives.of_topic(rng)
        )


def documents(count: int = 240, sentences: int = 120, seed: int = 0) -> list[str]:
    """Return `count` documents of `sentences` sentences each, with up to six sentences per line.

    Each line is a paragraph. The same arguments give the same documents.
    """
    rng = random.Random(seed)
    taken: set[str] = set()
    lexicon = _Lexicon(
        *(_Words(_new_words(rng, number, taken)) for number in (NOUNS, VERBS, ADJECTIVES))
    )
    result = []
    for _ in range(count):
        topic = lexicon.of_topic(rng)
        story = [_sentence(rng, topic) for _ in range(sentences)]
        result.append(
            "\n".join(" ".join(story[start : start + 6]) for start in range(0, sentences, 6))
        )
    return result


def _new_words(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    words: list[str] = []
    while len(words) < count:
        syllables = rng.choice((1, 2, 2, 3))
        word = "".join(
            rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)
        ) + rng.choice(_CODAS)
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


def _noun_phrase(rng: random.Random, words: _Lexicon, plural: bool) -> str:
    determiner = rng.choice(
        ("the", "some", "many", "these") if plural else ("the", "the", "a", "this", "every")
    )
    adjective = [words.adjectives.pick(rng)] if rng.random() < 0.4 else []
    return " ".join([determiner, *adjective, words.nouns.pick(rng) + ("s" if plural else "")])


def _clause(rng: random.Random, words: _Lexicon) -> str:
    plural = rng.random() < 0.4
    parts = [_noun_phrase(rng, words, plural)]
    if rng.random() < 0.2:
        parts.append(rng.choice(_ADVERBS))
    parts.append(words.verbs.pick(rng) + ("" if plural else "s"))
    parts.append(_noun_phrase(rng, words, rng.random() < 0.3))
    if rng.random() < 0.5:
        parts += [rng.choice(_PREPOSITIONS), _noun_phrase(rng, words, rng.random() < 0.3)]
    return " ".join(parts)


def _sentence(rng: random.Random, words: _Lexicon) -> str:
    text = _clause(rng, words)
    if rng.random() < 0.3:
        text += f", {rng.choice(_CONJUNCTIONS)} {_clause(rng, words)}"
    return text[0].upper() + text[1:] + "."
