"""Mock speech: its sounds and words, its files, and the command that makes it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gallery_lib.data.speech.characters import tidy
from gallery_lib.data.speech.mock_speech import SpeechSpec, language, utterance
from gallery_lib.data.speech.utterances import stacked_length


def test_lengths_are_those_of_short_sentences() -> None:
    spoken = language(SpeechSpec())
    made = [utterance(SpeechSpec(), spoken, "train", index) for index in range(60)]
    stacked = [stacked_length(len(features)) for features, _, _ in made]
    assert 145 < np.mean(stacked) < 175 and np.std(stacked) > 20
    assert 13 < np.mean([len(text) for _, text, _ in made]) < 17
    assert {features.dtype for features, _, _ in made} == {np.dtype(np.float16)}


def test_words_can_be_told_from_their_sound() -> None:
    spec = SpeechSpec(characters=12, words=10)
    spoken = language(spec)

    def words(split: str) -> list[tuple[str, np.ndarray]]:
        found = []
        for index in range(30):
            features, text, cuts = utterance(spec, spoken, split, index)
            places = [(0, 0), *cuts, (len(text), len(features))]
            for (c, f), (d, g) in pairwise(places):
                parts = np.array_split(features[f:g].astype(np.float32), 4)
                found.append((text[c:d], np.concatenate([part.mean(0) for part in parts])))
        return found

    training = words("train")
    names = sorted({name for name, _ in training})
    means = np.stack(
        [np.mean([sound for name, sound in training if name == which], axis=0) for which in names]
    )
    tested = words("val")
    right = sum(
        names[int(((means - sound) ** 2).sum(1).argmin())] == name for name, sound in tested
    )
    assert right / len(tested) > 0.9


def test_a_large_language_has_as_many_characters_as_asked() -> None:
    letters = language(SpeechSpec(characters=4230, words=10)).letters
    assert len(set(letters)) == 4230 and all(tidy(letter) == letter for letter in letters)
