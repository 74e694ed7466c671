"""Data set for speaker verification: an item is one speaker, heard in two utterances.

The data set reads ROOT/train and ROOT/val, folders of features with speakers as labels
(features.py). In training, the choice of two utterances and of their frames depends on
(seed, epoch, index) alone. Held-out items are consecutive pairs of each speaker's utterances,
cropped at the middle. Each value of a frame is normalised with its mean and standard deviation over
the training utterances, so features of any scale work.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gallery_lib.data.folders import LeftOut
from gallery_lib.data.seeded_items import SeededItems
from gallery_lib.data.speech import features
from gallery_lib.data.speech.check import PER_ITEM, by_speaker
from gallery_lib.data.speech.features import Statistics, Utterance, load

MAKE_COMMAND = "python3 data_prep/mock_speakers.py"


class SpeakerPairs(SeededItems[tuple[torch.Tensor, int]]):
    """Map-style data set: item i is (features float32 [2, T, dims] of one speaker, speaker number).

    T is `frames`. With `train` there is one item per speaker, with random utterances and frames;
    otherwise one per pair of a speaker's utterances, always the same. `statistics` for normalising
    are by default those of this split. `notices` has lines on utterances that are too short.

    Raises:
        InputError: for a folder that cannot be used, for features with another number of values a
            frame, and for a speaker with fewer than two utterances of at least T frames.
    """

    def __init__(
        self,
        root: Path | str,
        split: str,
        frames: int,
        dims: int,
        train: bool,
        seed: int = 0,
        statistics: Statistics | None = None,
    ) -> None:
        super().__init__(train, seed)
        folder = Path(root).expanduser().absolute() / split
        utterances = features.list_utterances(folder, MAKE_COMMAND)
        speakers = by_speaker(utterances, frames, folder)
        kept = {utterance.name for own in speakers.values() for utterance in own}
        left_out, short = LeftOut(), [u.name for u in utterances if u.name not in kept]
        if short:
            reason = f"of {len(utterances)} utterances of fewer than {frames} frames"
            left_out.add(reason, short[0], len(short))
        self.dims, self.notices = dims, left_out.notice(folder)
        self.speakers, self.frames = list(speakers), frames
        # speaker number, utterances to choose from
        self.items: list[tuple[int, list[Utterance]]] = list(enumerate(speakers.values()))
        if not train:
            # first a pair of every speaker, then a second pair of every speaker that has one, …
            pairs = [
                (label, own[start : start + PER_ITEM])
                for start in range(0, max(map(len, speakers.values())), PER_ITEM)
                for label, own in self.items
            ]
            self.items = [(label, pair) for label, pair in pairs if len(pair) == PER_ITEM]
        self.statistics = statistics or features.statistics(utterances, dims)

    def __len__(self) -> int:
        return len(self.items)

    def _item(self, index: int) -> tuple[torch.Tensor, int]:
        label, own = self.items[index]
        rng = self.rng(index) if self.train else None
        places = [int(i) for i in rng.permutation(len(own))[:PER_ITEM]] if rng else range(PER_ITEM)
        return torch.from_numpy(np.stack([self._crop(own[i], rng) for i in places])), label

    def _crop(self, utterance: Utterance, rng: np.random.Generator | None) -> NDArray[np.float32]:
        """Return T normalised frames [T, dims]: a random crop, or the middle if `rng` is None."""
        features = load(utterance, self.dims)
        spare = len(features) - self.frames
        start = int(rng.integers(spare + 1)) if rng else spare // 2
        mean, deviation = self.statistics
        return (features[start : start + self.frames] - mean) / deviation
