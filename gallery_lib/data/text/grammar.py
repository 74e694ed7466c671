"""A made-up language with English function words, for machines that have no text: deterministic, and worth learning.

Its nouns, verbs and adjectives are syllables put together; some are common and most are rare, as in real languages.
A document has a topic, which prefers a part of the words; a noun's number agrees with its verb. So a model can learn
frequencies first, then grammar, then topics.
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
"""A topic uses one word in so many, apart from the very common ones."""


class _Words:
    """The words of a class, the common ones first: the n-th is as frequent as Zipf's law has it."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self._cumulative = list(itertools.accumulate(1 / rank for rank in range(2, len(words) + 2)))

    def pick(self, rng: random.Random) -> str:
        return rng.choices(self.words, cum_weights=self._cumulative)[0]

    def of_topic(self, rng: random.Random) -> _Words:
        common = len(self.words) // 20
        return _Words(
            [*self.words[:common], *rng.sample(self.words[common:], len(self.words) // TOPIC_SHARE)]
        )


@dataclass(frozen=True)
class _Lexicon:
    nouns: _Words
    verbs: _Words
    adjectives: _Words

    def of_topic(self, rng: random.Random) -> _Lexicon:
        return _Lexicon(
            self.nouns.of_topic(rng), self.verbs.of_topic(rng), self.adjectives.of_topic(rng)
        )


def documents(count: int = 240, sentences: int = 120, seed: int = 0) -> list[str]:
    """`count` documents of `sentences` sentences, in paragraphs of about six; the same for the same arguments."""
    rng = random.Random(seed)
    taken: set[str] = set()
    lexicon = _Lexicon(
        *(_Words(_new_words(rng, number, taken)) for number in (NOUNS, VERBS, ADJECTIVES))
    )
    result = []
    for _ in range(count):
        topic = lexicon.of_topic(rng)
        told = [_sentence(rng, topic) for _ in range(sentences)]
        result.append(
            "\n".join(" ".join(told[start : start + 6]) for start in range(0, sentences, 6))
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
