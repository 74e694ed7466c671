"""Mock speech recognition data: filter-bank features of an invented language, with transcripts.

The language has characters, each spoken as an onset and a rime of fixed spectra. Its words have one
to four characters, and their frequencies follow Zipf's law. An utterance is a sequence of words.
Each character has a duration of its own. Each utterance has noise and a speaker (spectral tilt,
loudness, tempo). So a transcript follows from the signal. Durations and lengths are those of short
Mandarin sentences: 480 frames of 10 ms and 15 characters on average.

Everything depends on (seed, split, index) alone. ROOT/train and ROOT/val each get a manifest, an
alignment, and a float16 .npy file per utterance. mock_folder.py writes the data set completely or
not at all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gallery_lib.config.options import option
from gallery_lib.data.folders import SPLITS
from gallery_lib.data.mock_folder import Made, make
from gallery_lib.data.speech.features import MANIFEST, Cut, write

# version of the language: change it whenever utterance() would differ for the same spec
STYLE = 1

_LETTERS = (
    "aeinosrtlukmdpghbvfzcjwyxq"
    + "äöüåéèêíìîóòôúùûçñøæßðþ"
    + "αβγδεζηθικλμνξοπρστυφχψω"
    + "бгджзийклмнптуфцчшщъыьэюя"
)
_FIRST_IDEOGRAPH = 0x4E00  # the first character after the letters above
FILTERS = 80
_ONSETS, _RIMES = 24, 36
# in an utterance, and up to three more so that it ends with a whole word: 15 on average
_CHARACTERS_SAID = (7, 20)
_CHARACTER_FRAMES = (22, 40)
_PAUSE_FRAMES = (0, 4)  # between words


@dataclass(frozen=True)
class SpeechSpec:
    """Contents of a mock data set: size of its language, utterances by split, and the seed."""

    characters: int = option(40, minimum=2, maximum=4230)
    """Characters of the language, 2 to 4230."""
    words: int = option(40, minimum=2, maximum=100_000)
    """Words of the language."""
    train: int = 960
    """Training utterances."""
    val: int = 20
    """Held-out utterances."""
    seed: int = option(0, minimum=0, maximum=2**63 - 1)
    """Seed of language and utterances."""


@dataclass(frozen=True)
class Language:
    """Invented language: letters, words with their probabilities, and spectra of the characters."""

    letters: list[str]
    words: list[NDArray[np.int64]]  # indices into `letters`
    word_probabilities: NDArray[np.float64]  # [words]
    # [characters, 2, 80], log energy of onset and rime over the background's
    spectra: NDArray[np.float32]


def language(spec: SpeechSpec) -> Language:
    """Return the language of `spec`, the same for both splits and any number of utterances."""
    rng = np.random.default_rng(np.random.SeedSequence((spec.seed, len(SPLITS))))
    ideographs = (chr(_FIRST_IDEOGRAPH + i) for i in range(max(0, spec.characters - len(_LETTERS))))
    letters = [*_LETTERS[: spec.characters], *ideographs]
    popularity = _zipf(spec.characters, 4.0)
    lengths = rng.choice([1, 2, 3, 4], spec.words, p=[0.1, 0.4, 0.3, 0.2])
    words = [
        rng.choice(spec.characters, min(length, spec.characters), replace=False, p=popularity)
        for length in lengths
    ]
    onsets, rimes = _bumps(rng, _ONSETS, 2), _bumps(rng, _RIMES, 4)
    # more characters than syllables give homophones
    syllables = np.resize(rng.permutation(_ONSETS * _RIMES), spec.characters)
    spectra = np.stack((onsets[syllables // _RIMES], rimes[syllables % _RIMES]), axis=1)
    return Language(letters, words, _zipf(spec.words, 4.0), spectra)


def _zipf(count: int, offset: float) -> NDArray[np.float64]:
    """Return probabilities ∝ 1 / (rank + offset), float64 [count], after Zipf and Mandelbrot."""
    weights = 1.0 / (np.arange(count) + offset)
    return weights / weights.sum()


def _bumps(rng: np.random.Generator, count: int, formants: int) -> NDArray[np.float32]:
    """Return random spectra, float32 [count, 80], with `formants` smooth maxima each."""
    centres = rng.uniform(2, FILTERS - 2, (count, formants, 1))
    widths, heights = rng.uniform(2.5, 6, centres.shape), rng.uniform(2, 4.5, centres.shape)
    shapes = heights * np.exp(-(((np.arange(FILTERS) - centres) / widths) ** 2) / 2)
    return shapes.max(axis=1).astype(np.float32)


def utterance(
    spec: SpeechSpec, spoken: Language, split: str, index: int
) -> tuple[NDArray[np.float16], str, list[Cut]]:
    """Return the features, the transcript and the cuts between words of one utterance.

    The features are natural logarithms of energies, float16 [frames, 80].
    """
    rng = np.random.default_rng(np.random.SeedSequence((spec.seed, SPLITS.index(split), index)))
    wanted = rng.integers(_CHARACTERS_SAID[0], _CHARACTERS_SAID[1] + 1)
    tempo = rng.uniform(0.9, 1.1)
    words: list[NDArray[np.int64]] = []
    while sum(map(len, words)) < wanted:
        words.append(spoken.words[rng.choice(len(spoken.words), p=spoken.word_probabilities)])
    characters = np.concatenate(words)
    frames = np.rint(tempo * rng.uniform(*_CHARACTER_FRAMES, len(characters))).astype(int)
    # [words]: index of each word's last character
    last = np.cumsum([len(word) for word in words]) - 1
    pauses = np.zeros(len(characters), int)
    pauses[last] = rng.integers(_PAUSE_FRAMES[0], _PAUSE_FRAMES[1] + 1, len(words))
    lead = int(rng.integers(2, 8))
    ends = lead + np.cumsum(frames + pauses)  # [characters]
    energy = np.zeros((ends[-1], FILTERS), np.float32)
    for character, length, start in zip(characters, frames, ends - pauses - frames, strict=True):
        energy[start : start + length] = _speak(spoken.spectra[character], length)
    tilt = rng.uniform(-1, 1) * np.linspace(-1, 1, FILTERS, dtype=np.float32)
    noise = rng.standard_normal(energy.shape, np.float32) * np.float32(0.7)
    features = energy + np.float32(rng.uniform(7, 9)) + tilt + noise
    cuts = [(int(number) + 1, int(ends[number])) for number in last[:-1]]
    return features.astype(np.float16), "".join(spoken.letters[c] for c in characters), cuts


def _speak(spectra: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Return the log energy [frames, 80] of a character whose onset glides into its rime."""
    time_ = np.linspace(0, 1, frames, dtype=np.float32)[:, None]
    rime = np.clip((time_ - 0.25) / 0.15, 0, 1)
    loudness = np.clip(np.minimum(time_, 1 - time_) * 10, 0.2, 1)
    return loudness * ((1 - rime) * spectra[0] + rime * spectra[1])


def generate(root: Path | str, spec: SpeechSpec, progress: bool = True) -> Made:
    """Make the mock data set `spec` in `root`, as `mock_folder.make` does."""
    return make(
        root,
        {"kind": "mock-speech", "style": STYLE, "spec": asdict(spec)},
        {f"{split}/{MANIFEST}": (split,) for split in SPLITS},
        partial(_write, spec),
        progress=progress,
    )


def _write(spec: SpeechSpec, manifest: Path, split: str) -> None:
    spoken, folder = language(spec), manifest.parent
    rows, alignment = [], []
    for index in range(getattr(spec, split)):
        features, transcript, cuts = utterance(spec, spoken, split, index)
        name = f"{index:06d}.npy"
        np.save(folder / name, features)
        rows.append((name, transcript, len(features)))
        alignment.append((name, cuts))
    write(folder, rows, alignment)
