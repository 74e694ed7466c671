"""Text in a made-up language, the same on every machine.

As in real languages, few words are common and most are rare, and those of a document belong to its
topic.
"""

from __future__ import annotations

import itertools
import random

ONSETS, VOWELS, CODAS = "bdfghklmnprstvw", "aeiou", "bdgklmnprt"
WORDS, TOPIC = 600, 200


def documents(count: int = 240, sentences: int = 120, seed: int = 0) -> list[str]:
    """Return `count` documents of `sentences` sentences each, with up to six sentences per line.

    Each line is a paragraph. The same arguments give the same documents.
    """
    rng = random.Random(seed)
    words = [_word(rng) for _ in range(WORDS)]
    # By Zipf's law the word with number n has the weight 1 / (n + 1).
    zipf = list(itertools.accumulate(1 / rank for rank in range(2, TOPIC + 2)))
    result = []
    for _ in range(count):
        topic = [*words[:20], *rng.sample(words[20:], TOPIC - 20)]
        story = []
        for _ in range(sentences):
            sentence = " ".join(rng.choices(topic, cum_weights=zipf, k=rng.randint(6, 16)))
            story.append(f"{sentence.capitalize()}{rng.choice('.....!?')}")
        lines = [" ".join(story[start : start + 6]) for start in range(0, sentences, 6)]
        result.append("\n".join(lines))
    return result


def _word(rng: random.Random) -> str:
    syllables = (rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 4)))
    return "".join(syllables) + rng.choice(CODAS)
