"""Text in a made-up language with learnable structure, the same on every machine.

Function words are English. Nouns, verbs and adjectives are random syllables; a few are common and
most are rare, as in real languages. The topic of a document selects part of the vocabulary, and
each verb agrees in number with its subject. A model can therefore learn word frequencies first,
then grammar, then topics.
"""

from __future__ import annotations

import functools
import itertools
import random

_ONSETS, _VOWELS, _CODAS, _PREPOSITIONS, _CONJUNCTIONS, _ADVERBS = (
    words.split()
    for words in (
        "b d f g h k l m n p r s t v w br fl gr pl sh sk st th tr",
        "a e i o u ai ea oo ou",
        "b d g k l m n p r t nd ng nt rk rn st th",
        "in on under over with without behind before after from near of for against",
        "and but because while when although so if",
        "often rarely quickly slowly always never sometimes again together apart",
    )
)
NOUNS, VERBS, ADJECTIVES = 400, 160, 120
TOPIC_SHARE = 5
"""Inverse share of a word class that a topic uses: 5 means one word in five.

The most common words belong to every topic.
"""


@functools.cache
def _zipf(count: int) -> list[float]:
    """Return cumulative weights by Zipf's law: word n, counted from 1, has 1 / (n + 1)."""
    return list(itertools.accumulate(1 / rank for rank in range(2, count + 2)))


def _pick(rng: random.Random, words: list[str]) -> str:
    return rng.choices(words, cum_weights=_zipf(len(words)))[0]


def documents(count: int = 240, sentences: int = 120, seed: int = 0) -> list[str]:
    """Return `count` documents of `sentences` sentences each, with up to six sentences per line.

    Each line is a paragraph. The same arguments give the same documents.
    """
    rng = random.Random(seed)
    taken: set[str] = set()
    lexicon = [_new_words(rng, number, taken) for number in (NOUNS, VERBS, ADJECTIVES)]
    result = []
    for _ in range(count):
        topic = []
        for words in lexicon:
            common = len(words) // 20
            rest = rng.sample(words[common:], len(words) // TOPIC_SHARE)
            topic.append([*words[:common], *rest])
        story = [_sentence(rng, topic) for _ in range(sentences)]
        lines = [" ".join(story[start : start + 6]) for start in range(0, sentences, 6)]
        result.append("\n".join(lines))
    return result


def _new_words(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    words: list[str] = []
    while len(words) < count:
        syllables = rng.choice((1, 2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables))
        word += rng.choice(_CODAS)
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


def _noun_phrase(rng: random.Random, topic: list[list[str]], plural: bool) -> str:
    singular = ("the", "the", "a", "this", "every")
    determiner = rng.choice(("the", "some", "many", "these") if plural else singular)
    adjective = [_pick(rng, topic[2])] if rng.random() < 0.4 else []
    return " ".join([determiner, *adjective, _pick(rng, topic[0]) + "s" * plural])


def _clause(rng: random.Random, topic: list[list[str]]) -> str:
    plural = rng.random() < 0.4
    parts = [_noun_phrase(rng, topic, plural)]
    if rng.random() < 0.2:
        parts.append(rng.choice(_ADVERBS))
    parts.append(_pick(rng, topic[1]) + "s" * (not plural))
    parts.append(_noun_phrase(rng, topic, rng.random() < 0.3))
    if rng.random() < 0.5:
        parts += [rng.choice(_PREPOSITIONS), _noun_phrase(rng, topic, rng.random() < 0.3)]
    return " ".join(parts)


def _sentence(rng: random.Random, topic: list[list[str]]) -> str:
    text = _clause(rng, topic)
    if rng.random() < 0.3:
        text += f", {rng.choice(_CONJUNCTIONS)} {_clause(rng, topic)}"
    return text[0].upper() + text[1:] + "."
