"""Mock features for speaker verification: speakers of one invented language, each with a voice.

A frame has 40 values, like a log-mel spectrum. All speakers share a table of sounds; a sound is a
few resonances along the frequency axis. A speaker has a vocal tract (which stretches the axis), a
spectral envelope, a pace and a liveliness. An utterance has a sequence of sounds, a loudness, noise
and a channel. The channel is another spectral envelope, which hides the speaker's. So the mean
spectrum separates speakers badly. A model must learn what stays the same in all utterances of one
speaker. Each utterance depends only on (seed, split, speaker, number).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gallery_lib.config.options import option
from gallery_lib.data import mock_folder
from gallery_lib.data.folders import SPLITS
from gallery_lib.data.speech.features import MANIFEST, write

DIMS = 40
SHORTEST, LONGEST = 120, 200  # frames of an utterance
# version of the generator: change it whenever features() would give others for the same spec
STYLE = 1
_SOUNDS = 24
_CHANNEL = range(1, 4)  # cosines along the frequency axis, by number of half waves
_ENVELOPE = range(4, 12)


@dataclass(frozen=True)
class SpeakerSpec:
    """Contents of a mock data set: speakers by split, utterances of each speaker, and the seed.

    The splits have different speakers.
    """

    train: int = option(256, minimum=2, maximum=100_000)
    """Speakers to train on."""
    val: int = option(48, minimum=2, maximum=100_000)
    """Other speakers, held out."""
    utterances: int = option(4, minimum=2, maximum=1000)
    """Utterances of each speaker."""
    seed: int = option(0, minimum=0, maximum=2**63 - 1)
    """Seed of everything."""


def features(seed: int, split: str, speaker: int, number: int) -> NDArray[np.float32]:
    """Return utterance `number` of a speaker, float32 [frames, 40]: mean about 0, scale about 1."""
    own = _generator(seed, SPLITS.index(split), speaker)
    stretch, pace, liveliness = own.uniform(0.8, 1.25), own.uniform(4, 9), own.uniform(0.6, 1.4)
    envelope = _curve(own, _ENVELOPE) * 0.8
    rng = _generator(seed, SPLITS.index(split), speaker, number)
    frames = int(rng.integers(SHORTEST, LONGEST + 1))
    lengths = rng.geometric(1 / pace, frames)  # frames of each sound: more sounds than needed
    sequence = np.repeat(rng.integers(_SOUNDS, size=frames), lengths)[:frames]
    axis = np.arange(DIMS) * stretch
    # [sounds, dims]
    sounds = np.stack([np.interp(axis, np.arange(DIMS), sound) for sound in _sounds(seed)])
    spoken = sounds[sequence] * liveliness  # [frames, dims]
    # one sound glides into the next
    spoken[1:-1] = (spoken[:-2] + 2 * spoken[1:-1] + spoken[2:]) / 4
    channel = _curve(rng, _CHANNEL) * 1.0 + rng.normal(0, 0.3)
    return (spoken + envelope + channel + rng.normal(0, 0.4, spoken.shape)).astype(np.float32)


def generate(root: Path | str, spec: SpeakerSpec, progress: bool = True) -> mock_folder.Made:
    """Make the data set `spec` in `root`, as `mock_folder.make` does."""
    return mock_folder.make(
        root,
        {"kind": "mock speakers", "style": STYLE, **dataclasses.asdict(spec)},
        {f"{split}/{MANIFEST}": (split,) for split in SPLITS},
        partial(_write, spec),
        progress=progress,
    )


def _write(spec: SpeakerSpec, manifest: Path, split: str) -> None:
    rows = []
    for speaker in range(getattr(spec, split)):
        name = f"{split}-{speaker:05d}"
        (manifest.parent / name).mkdir(exist_ok=True)
        for number in range(spec.utterances):
            array = features(spec.seed, split, speaker, number)
            np.save(manifest.parent / name / f"{number}.npy", array)
            rows.append((f"{name}/{number}.npy", name, len(array)))
    write(manifest.parent, rows)


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def _curve(rng: np.random.Generator, cosines: range) -> NDArray[np.float64]:
    """Return a random sum of `cosines`, float64 [dims], of unit variance."""
    waves = np.cos(np.pi * np.array(cosines)[:, None] * (np.arange(DIMS) + 0.5) / DIMS)
    return rng.normal(0, np.sqrt(2 / len(cosines)), len(cosines)) @ waves


@lru_cache(maxsize=2)
def _sounds(seed: int) -> NDArray[np.float64]:
    """Return the table of sounds, float64 [sounds, dims]: three resonances each, mean 0."""
    rng = _generator(seed, len(SPLITS))
    centres = rng.uniform(0, DIMS, (_SOUNDS, 3, 1))
    heights = rng.uniform(1, 2.5, (_SOUNDS, 3, 1))
    sounds = (heights * np.exp(-(((np.arange(DIMS) - centres) / 2.5) ** 2))).sum(1)
    return sounds - sounds.mean()
